"""Rules: sets of all images in some folders, too large for a list."""

import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.data.manifests import UNNAMED, Manifest, load_classes
from openbench.digest import OMIT_IF_DEFAULT
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
        suffix: the end of the images' names.
        count: number of images in all folders, or None if it is not known.
        per_class: number of images of each folder: those whose keys have the smallest SHA-256, so that the choice does
            not depend on other files; None for all.
        derived: why the set is not the published one; empty = it is.
        span: percentages from and to which the set reaches in each folder, in the order of the keys' SHA-256: of n
            images those from ⌊n·from/100⌋ to ⌊n·to/100⌋. Sets with disjoint spans share no image.
        counts: number of images in each folder, where they differ and are known; their sum is `count`.
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
    counts: tuple[int, ...] = field(default=(), metadata={OMIT_IF_DEFAULT: True})
    part_of: "FolderRule | None" = field(default=None, metadata={OMIT_IF_DEFAULT: True})

    @property
    def size(self) -> int | None:
        """Number of images; None if it is not known, e.g. for a part of folders that differ in size."""
        if self.count is None or self.span == _WHOLE:
            return self.count
        if self.counts:
            return sum(last - first for first, last in map(self._bounds, self.counts))
        if self.count % len(self.folders):
            return None
        first, last = self._bounds(self.count // len(self.folders))
        return len(self.folders) * (last - first)

    def only(self, classes: Iterable[str]) -> "FolderRule":
        """The rule for some of the classes."""
        chosen = set(classes)
        rows = [i for i, name in enumerate(self.classes) if name in chosen]
        count = sum(self.counts[i] for i in rows) if self.counts else self._count_of(len(rows))
        return replace(
            self,
            folders=tuple(self.folders[i] for i in rows),
            classes=tuple(self.classes[i] for i in rows),
            count=count,
            counts=tuple(self.counts[i] for i in rows) if self.counts else (),
            part_of=self.part_of or self if count is None else None,
        )

    def class_names(self) -> tuple[str, ...]:
        """The classes, sorted; empty where the source names none."""
        return tuple(sorted(set(self.classes) - {UNNAMED}))

    def expand(self, names_in: Callable[[str], Iterable[str]]) -> tuple[Manifest, int]:
        """Return the manifest of the images in one place, and how many images there should be.

        Where the count is not known, every folder should have at least one image. Of a part of unequal folders, and of
        some of the classes, the images that all folders lack count as missing from the set.

        Args:
            names_in: returns the file names in a folder, e.g. `imagenet_1k/train/n01440764`.

        Raises:
            DataError: there are more images than the rule counts.
        """
        keys: list[str] = []
        classes: list[str] = []
        empty = total = 0
        counts = self.counts or (None,) * len(self.folders)
        for folder, class_name, count in zip(self.folders, self.classes, counts, strict=True):
            images = self._keys_in(folder, names_in)
            self._check_count(len(images), count, f"'{folder}'")
            total += len(images)
            part = self._part(images)
            keys += part
            classes += [class_name] * len(part)
            empty += not part
        self._check_count(total, self.count, "its folders")
        missing = max(empty, 0 if self.count is None else self.count - total)
        if self.part_of is not None:
            manifest, expected = self.part_of.expand(names_in)
            missing = max(missing, expected - len(manifest))
        return Manifest(self.name, tuple(keys), tuple(classes)), self.size or len(keys) + missing

    def _check_count(self, images: int, count: int | None, where: str) -> None:
        if count is not None and images > count:
            raise DataError(
                f"rule '{self.name}': {images} images ending in '{self.suffix}' in {where}, {count} are published — "
                "remove what does not belong there"
            )

    def _keys_in(self, folder: str, names_in: Callable[[str], Iterable[str]]) -> list[str]:
        inside = self.key.rpartition("/")[0].format(folder=folder)
        keys = [f"{inside}/{name}" for name in names_in(inside) if name.endswith(self.suffix)]
        return sorted(keys) if self.per_class is None else sorted(sorted(keys, key=_order)[: self.per_class])

    def _part(self, keys: list[str]) -> list[str]:
        if self.span == _WHOLE:
            return keys
        first, last = self._bounds(len(keys))
        return sorted(sorted(keys, key=_order)[first:last])

    def _bounds(self, images: int) -> tuple[int, int]:
        return images * self.span[0] // 100, images * self.span[1] // 100

    def _count_of(self, folders: int) -> int | None:
        """The number of images in some of the folders; None unless all folders are known to have equally many."""
        if self.per_class is not None:
            return self.per_class * folders
        if self.span == _WHOLE or self.count is None or self.count % len(self.folders):
            return None
        return self.count // len(self.folders) * folders


def _order(key: str) -> bytes:
    """The sort key of the images of a folder: a random order that is the same everywhere."""
    return hashlib.sha256(key.encode()).digest()


def load_rule(name: str) -> FolderRule | None:
    """Return the rule `name`, e.g. `imagenet1k/train`, or a part of one, e.g. `rebench/kmnist/train`; None if none.

    The keys of a rule's file are those of `FolderRule`, where `folders` and `classes` name lists, `parts` with the span
    of each part, and `within`: parent folders, where a set has the same folders several times.

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
            f"rule '{name}' has no part '{part}'{did_you_mean(part, spans)} — name one of "
            f"{', '.join(filter(None, spans)) or 'none'} after a slash"
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
