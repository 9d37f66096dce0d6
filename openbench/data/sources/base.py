"""Where the images of a set may be found: the base class, and folders of files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from openbench.config.constraints import Checked
from openbench.core.benchmark import Items
from openbench.data.sources.items import ArrayItems, FileItems


@dataclass(frozen=True, eq=False)
class Found:
    """What a source has of a manifest.

    Args:
        items: the images present, in manifest order.
        present: (n,) bool, which of the manifest's keys these are.
        files: the user's own files with these images, which may change in place; none where a set is published.
        contents: (files, 32) uint8, the SHA-256 of the bytes that were read, where the source has read all of them.
    """

    items: Items
    present: NDArray[np.bool_]
    files: Sequence[Path | str] = ()
    contents: NDArray[np.uint8] | None = None

    @property
    def count(self) -> int:
        """How many images are present."""
        return int(self.present.sum())


class Source(Checked, ABC):
    """A container layout. Subclasses are frozen dataclasses; a data set's config lists those it may come in.

    Attributes:
        deviation: how the images in this container differ from the set as published; empty = they do not.
        version: of a source that makes images; raised when a change alters the images; enters the digest of a set.
        at: folders below each root, of a source that lies in one.
    """

    version: ClassVar[int] = 1

    deviation: str
    at: Sequence[str]

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Every place where this container is looked for, in search order, present or not: `at` below each root."""
        return [root / folder for root in roots for folder in self.at]

    @abstractmethod
    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """What `place` has of `keys`; None if the container is not there.

        Raises:
            DataError: a container is there and is not what it should be.
        """

    def names_in(self, place: Path, folder: str) -> Iterable[str]:
        """The file names in a folder of keys, for sets that are given by a rule; none where there are no folders."""
        return ()


def raised_versions(source: Source) -> dict[str, int]:
    """Return class name → version, for the source and for those whose images it changes, where it is above 1."""
    own = {type(source).__qualname__: source.version} if source.version != 1 else {}
    for value in vars(source).values():
        parts = value.values() if isinstance(value, Mapping) else (value,)
        for part in parts:
            own |= raised_versions(part) if isinstance(part, Source) else {}
    return own


@dataclass(frozen=True)
class ImageFolder(Source):
    """Image files below a folder, at the path that their key says.

    Args:
        at: folders to look in, relative to each data root; `.` is the root itself.
        strip: leading part of each key that the folder tree does not have.
        flat: whether all files lie directly in the folder, under their bare names.
        deviation: how these files differ from the set as published.
        blanks: what keys have where the names of files and their folders have blanks, e.g. `_`; empty = blanks.
    """

    at: Sequence[str] = ("images_classic", "images_largescale", ".")
    strip: str = ""
    flat: bool = False
    deviation: str = ""
    blanks: str = ""

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """The keys whose files exist; one directory listing per folder instead of one look-up per file."""
        if not place.is_dir() or _is_empty(place):
            return None
        relative, present = list[str](), np.zeros(len(keys), dtype=bool)
        listed: dict[str, dict[str, str]] = {}
        for position, key in enumerate(keys):
            folder, _, name = key.removeprefix(self.strip).rpartition("/")
            folder = "" if self.flat else folder
            if folder not in listed:
                listed[folder] = self._named(place, folder)
            below = listed[folder].get(name)
            if below is not None:
                present[position] = True
                relative.append(below)
        if not present.any():
            return None
        return Found(FileItems([os.path.join(place, file) for file in relative]), present)

    def _named(self, place: Path, folder: str) -> dict[str, str]:
        """The path below `place` of each file in a folder, by its name as keys have it."""
        if not self.blanks:
            return {name: f"{folder}/{name}" if folder else name for name in _names(place / folder)}
        outer, _, last = folder.rpartition("/")
        same = [name for name in _names(place / outer) if name.replace(" ", self.blanks) == last]
        inside = [f"{outer}/{name}" if outer else name for name in same]
        return {name.replace(" ", self.blanks): f"{way}/{name}" for way in inside for name in _names(place / way)}

    def names_in(self, place: Path, folder: str) -> Iterable[str]:
        """The file names in a folder of keys; hidden files do not belong to the set."""
        below = place if self.flat else place / folder.removeprefix(self.strip)
        return (name for name in _names(below) if not name.startswith("."))


@dataclass(frozen=True)
class ClassFolders(Source):
    """Image files in one folder per class, where keys hold only the file's name: ImageNet's validation images, sorted.

    Args:
        at: folders that hold the class folders, relative to each data root.
        deviation: how these files differ from the set as published.
    """

    at: Sequence[str]
    deviation: str = ""

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """The keys whose bare names occur in one of the class folders."""
        folder_of = {name: folder for folder in sorted(_names(place)) for name in _names(place / folder)}
        if not folder_of:
            return None
        bare = [key.rpartition("/")[2] for key in keys]
        present = np.array([name in folder_of for name in bare], dtype=bool)
        if not present.any():
            return None
        files = [f"{place}/{folder_of[bare[i]]}/{bare[i]}" for i in np.flatnonzero(present)]
        return Found(FileItems(files), present)


def rows_found(pixels: NDArray[np.uint8], rows: NDArray[np.int64]) -> Found:
    """Return what an array has, given each key's row, −1 for the keys that it lacks."""
    present = rows >= 0
    return Found(ArrayItems(pixels, rows[present]), present)


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()


def _is_empty(folder: Path) -> bool:
    """Whether nothing lies in a folder; not known of one that cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False
