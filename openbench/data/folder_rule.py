"""Sets that are "every image of these folders": too large to list, so that a rule and the counts stand for the list."""

import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.data.manifest import UNNAMED, Manifest, load_classes
from openbench.errors import DataError, did_you_mean

_NEEDED = ("key", "folders", "classes")
_OPTIONAL = ("suffix", "count", "per_class", "derived")


@dataclass(frozen=True)
class FolderRule:
    """All images, or a fixed number, of each of several folders.

    Args:
        name: the rule's path below the manifest folder, e.g. `imagenet1k/train`.
        key: pattern of the keys with `{folder}` and, as its last part, `{name}`.
        folders: one folder per class.
        classes: the class of each folder.
        suffix: how the names of images end.
        count: how many images there are altogether, or None if that is not known.
        per_class: images taken of each folder: those whose keys have the smallest SHA-256, so that the choice does not
            depend on what else is there; None for all.
        derived: why the set is not the one that was published; empty = it is.
    """

    name: str
    key: str
    folders: tuple[str, ...]
    classes: tuple[str, ...]
    suffix: str = ""
    count: int | None = None
    per_class: int | None = None
    derived: str = ""

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        if not self.key.endswith("/{name}") or "{folder}" not in self.key:
            raise DataError(f"rule '{self.name}': key {self.key!r} — `…/{{folder}}/{{name}}` expected")
        if len(self.folders) != len(self.classes) or len(set(self.folders)) != len(self.folders):
            raise DataError(
                f"rule '{self.name}': {len(self.folders)} folders, {len(set(self.folders))} of them different, "
                f"{len(self.classes)} classes — one class per folder expected"
            )

    def only(self, classes: Iterable[str]) -> "FolderRule":
        """The folders of some classes; the count of a part is not known."""
        wanted = set(classes)
        kept = [i for i, name in enumerate(self.classes) if name in wanted]
        return replace(
            self,
            folders=tuple(self.folders[i] for i in kept),
            classes=tuple(self.classes[i] for i in kept),
            count=self.per_class and self.per_class * len(kept),
        )

    def class_names(self) -> tuple[str, ...]:
        """The classes, sorted; empty where the source names none."""
        return tuple(sorted(set(self.classes) - {UNNAMED}))

    def expand(self, names_in: Callable[[str], Iterable[str]]) -> tuple[Manifest, int]:
        """Return the manifest that the rule has in one place, and how many images it should have.

        Where the count is not known, every folder should have at least one image.

        Args:
            names_in: gives the file names in a folder, e.g. `imagenet_1k/train/n01440764`; empty if it is not there.

        Raises:
            DataError: there are more images than the rule counts.
        """
        keys: list[str] = []
        classes: list[str] = []
        empty = 0
        for folder, class_name in zip(self.folders, self.classes, strict=True):
            found = self._of(folder, names_in)
            keys += found
            classes += [class_name] * len(found)
            empty += not found
        if self.count is not None and len(keys) > self.count:
            raise DataError(
                f"rule '{self.name}': {len(keys)} images ending in '{self.suffix}' in its folders — {self.count} are "
                "published — remove what does not belong there"
            )
        return Manifest(self.name, tuple(keys), tuple(classes)), self.count or len(keys) + empty

    def _of(self, folder: str, names_in: Callable[[str], Iterable[str]]) -> list[str]:
        inside = self.key.rpartition("/")[0].format(folder=folder)
        keys = [f"{inside}/{name}" for name in names_in(inside) if name.endswith(self.suffix)]
        if self.per_class is not None:
            keys = sorted(keys, key=lambda key: hashlib.sha256(key.encode()).digest())[: self.per_class]
        return sorted(keys)


def rule_path(name: str) -> Path:
    """Return where the rule `name` is, whether or not it is there."""
    return paths.manifest_dir() / f"{name}.toml"


@lru_cache(maxsize=16)
def load_rule(name: str) -> FolderRule:
    """Return the rule `name`, e.g. `imagenet1k/train`.

    Raises:
        DataError: no such rule, not TOML, or a key that a rule does not have.
    """
    path = rule_path(name)
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"rule '{name}' cannot be read — {error} — looked for {path}") from error
    allowed = (*_NEEDED, *_OPTIONAL)
    for key in values:
        if key not in allowed:
            raise DataError(f"rule '{name}' has no key '{key}'{did_you_mean(key, allowed)} — allowed: {list(allowed)}")
    missing = [key for key in _NEEDED if key not in values]
    if missing:
        raise DataError(f"rule '{name}': missing {', '.join(missing)} — every rule has them")
    lists = {key: load_classes(values[key]) for key in ("folders", "classes")}
    return FolderRule(name=name, **{**values, **lists})
