"""Sets that are "every image of these folders": they are too large to list, so a rule and counts replace the list."""

import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.data.manifests import UNNAMED, Manifest, load_classes
from openbench.digest import LATER
from openbench.errors import DataError, did_you_mean

_WHOLE = (0, 100)


@dataclass(frozen=True)
class FolderRule:
    """All images, or a fixed number, of each of several folders.

    Args:
        name: the rule's path below the manifest folder, e.g. `imagenet1k/train`.
        key: pattern of the keys with `{folder}` and, as its last part, `{name}`.
        folders: one folder per class.
        classes: the class of each folder.
        suffix: how the names of images end.
        count: how many images the folders have altogether, or None if that is not known.
        per_class: images taken of each folder: those whose keys have the smallest SHA-256, so that the choice does not
            depend on what else is there; None for all.
        derived: why the set is not the one that was published; empty = it is.
        span: from and to which percentage of each folder's images the set reaches, in the order of the keys' SHA-256:
            of n images those from ⌊n·from/100⌋ to ⌊n·to/100⌋. Spans that do not overlap share no image.
        counts: how many images each folder has, where they differ and that is known: only then is the size of a part,
            or of some of the classes, known too. Their sum is `count`.
        part_of: the rule for all classes, where this one is for some and its `count` is not known.
    """

    name: str
    key: str
    folders: tuple[str, ...]
    classes: tuple[str, ...]
    suffix: str = ""
    count: int | None = None
    per_class: int | None = None
    derived: str = ""
    span: tuple[int, int] = _WHOLE
    counts: tuple[int, ...] = field(default=(), metadata={LATER: True})
    part_of: "FolderRule | None" = field(default=None, metadata={LATER: True})

    @property
    def size(self) -> int | None:
        """How many images the set has; None if that is not known, as of a part of folders that differ in size."""
        if self.count is None or self.span == _WHOLE:
            return self.count
        if self.counts:
            return sum(last - first for first, last in map(self._bounds, self.counts))
        if self.count % len(self.folders):
            return None
        first, last = self._bounds(self.count // len(self.folders))
        return len(self.folders) * (last - first)

    def only(self, classes: Iterable[str]) -> "FolderRule":
        """The rule for some of the classes; how many images it has may then not be known."""
        wanted = set(classes)
        kept = [i for i, name in enumerate(self.classes) if name in wanted]
        count = sum(self.counts[i] for i in kept) if self.counts else self._count_of(len(kept))
        return replace(
            self,
            folders=tuple(self.folders[i] for i in kept),
            classes=tuple(self.classes[i] for i in kept),
            count=count,
            counts=tuple(self.counts[i] for i in kept) if self.counts else (),
            part_of=self.part_of or self if count is None else None,
        )

    def class_names(self) -> tuple[str, ...]:
        """The classes, sorted; empty where the source names none."""
        return tuple(sorted(set(self.classes) - {UNNAMED}))

    def expand(self, names_in: Callable[[str], Iterable[str]]) -> tuple[Manifest, int]:
        """Return the manifest of the images in one place, and how many images there should be.

        Where the count is not known, every folder should have at least one image. Of a part of unequal folders all
        images are counted, and those that the folders lack are missing from the part. Of some of the classes whose
        images are not counted one by one, those that the folders of all classes lack are missing.

        Args:
            names_in: gives the file names in a folder, e.g. `imagenet_1k/train/n01440764`; empty if it is not there.

        Raises:
            DataError: there are more images than the rule counts.
        """
        keys: list[str] = []
        classes: list[str] = []
        empty = whole = 0
        for at, (folder, class_name) in enumerate(zip(self.folders, self.classes, strict=True)):
            there = self._of(folder, names_in)
            if self.counts and len(there) > self.counts[at]:
                raise DataError(
                    f"rule '{self.name}': {len(there)} images ending in '{self.suffix}' in '{folder}' — "
                    f"{self.counts[at]} are published — remove what does not belong there"
                )
            whole += len(there)
            found = self._part(there)
            keys += found
            classes += [class_name] * len(found)
            empty += not found
        if self.count is not None and whole > self.count:
            raise DataError(
                f"rule '{self.name}': {whole} images ending in '{self.suffix}' in its folders — {self.count} are "
                "published — remove what does not belong there"
            )
        lacking = max(empty, 0 if self.count is None else self.count - whole, self._lacked_by_all(names_in))
        return Manifest(self.name, tuple(keys), tuple(classes)), self.size or len(keys) + lacking

    def _lacked_by_all(self, names_in: Callable[[str], Iterable[str]]) -> int:
        """How many images the folders of all classes lack together, where this rule is of some of them."""
        if self.part_of is None:
            return 0
        manifest, expected = self.part_of.expand(names_in)
        return expected - len(manifest)

    def _of(self, folder: str, names_in: Callable[[str], Iterable[str]]) -> list[str]:
        inside = self.key.rpartition("/")[0].format(folder=folder)
        keys = [f"{inside}/{name}" for name in names_in(inside) if name.endswith(self.suffix)]
        return sorted(keys) if self.per_class is None else sorted(sorted(keys, key=_place)[: self.per_class])

    def _part(self, keys: list[str]) -> list[str]:
        if self.span == _WHOLE:
            return keys
        first, last = self._bounds(len(keys))
        return sorted(sorted(keys, key=_place)[first:last])

    def _bounds(self, images: int) -> tuple[int, int]:
        return images * self.span[0] // 100, images * self.span[1] // 100

    def _count_of(self, folders: int) -> int | None:
        """The number of images in some of the folders; None unless all folders are known to have equally many."""
        if self.per_class is not None:
            return self.per_class * folders
        if self.span == _WHOLE or self.count is None or self.count % len(self.folders):
            return None
        return self.count // len(self.folders) * folders


def _place(key: str) -> bytes:
    """The sort key of the images of a folder: a random order that is the same everywhere."""
    return hashlib.sha256(key.encode()).digest()


def load_rule(name: str) -> FolderRule | None:
    """Return the rule `name`, e.g. `imagenet1k/train`, or a part of one, e.g. `rebench/kmnist/train`; None if none.

    The keys of a rule's file are those of `FolderRule`, where `folders` and `classes` name lists, `parts` with the span
    of each part, and `within`: what holds the folders, where a set has the same ones several times.

    Raises:
        DataError: the rule has other parts.
    """
    for file, part in ((name, ""), name.rpartition("/")[::2]):
        if (paths.manifest_dir() / f"{file}.toml").is_file():
            return _read(paths.manifest_dir() / f"{file}.toml", name, part)
    return None


@lru_cache(maxsize=16)
def _read(path: Path, name: str, part: str) -> FolderRule:
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    spans, within = values.pop("parts", {"": _WHOLE}), values.pop("within", [])
    if part not in spans:
        raise DataError(
            f"rule '{name}' is not a set — '{path}' has the parts {', '.join(filter(None, spans)) or 'none'}"
            f"{did_you_mean(part, spans)} — name one of them after a slash"
        )
    folders, classes = load_classes(values.pop("folders")), load_classes(values.pop("classes"))
    return FolderRule(
        name=name,
        folders=tuple(f"{outer}/{folder}" for outer in within for folder in folders) or folders,
        classes=classes * max(1, len(within)),
        counts=tuple(values.pop("counts", ())),
        span=tuple(spans[part]),
        **values,
    )
