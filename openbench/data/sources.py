"""Where the images of a set may be found: the base class, and folders of files."""

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench.data.items import ArrayItems, FileItems


@dataclass(frozen=True, eq=False)
class Found:
    """What a source has of a manifest.

    Args:
        items: the images present, in manifest order.
        present: (n,) bool, which of the manifest's keys these are.
    """

    items: ArrayItems | FileItems
    present: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """How many images are present."""
        return int(self.present.sum())


class Source(ABC):
    """A container layout. Subclasses are frozen dataclasses; a data set's config lists those it may come in.

    Attributes:
        deviation: how the images in this container differ from the set as published; empty = they do not.
    """

    deviation: str

    @abstractmethod
    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Every place where this container is looked for, in search order, present or not."""

    @abstractmethod
    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """What `place` has of `keys`; None if the container is not there.

        Raises:
            DataError: a container is there and is not what it should be.
        """


@dataclass(frozen=True)
class ImageFolder(Source):
    """Image files below a folder, at the path that their key says.

    Args:
        at: folders to look in, relative to each data root; `.` is the root itself.
        strip: leading part of each key that the folder tree does not have.
        flat: whether all files lie directly in the folder, under their bare names.
        deviation: how these files differ from the set as published.
    """

    at: Sequence[str] = ("images_classic", "images_largescale", ".")
    strip: str = ""
    flat: bool = False
    deviation: str = ""

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Each folder below each root."""
        return [root / folder for root in roots for folder in self.at]

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """The keys whose files exist; one directory listing per folder instead of one look-up per file."""
        relative = [key.removeprefix(self.strip) for key in keys]
        if self.flat:
            relative = [key.rpartition("/")[2] for key in relative]
        wanted: dict[str, list[int]] = defaultdict(list)
        for position, path in enumerate(relative):
            wanted[path.rpartition("/")[0]].append(position)
        present = np.zeros(len(keys), dtype=bool)
        for folder, positions in wanted.items():
            names = _names(place / folder)
            for position in positions:
                present[position] = relative[position].rpartition("/")[2] in names
        if not present.any():
            return None
        return Found(FileItems([place / relative[i] for i in np.flatnonzero(present)]), present)


def rows_found(pixels: NDArray[np.uint8], rows: NDArray[np.int64]) -> Found:
    """Return what an array has, given each key's row, −1 for the keys that it lacks."""
    present = rows >= 0
    return Found(ArrayItems(pixels, rows[present]), present)


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
