"""Decoded images on demand: rows of an array, or files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.core.benchmark import Image
from openbench.errors import DataError


@dataclass(frozen=True, eq=False)
class ArrayItems:
    """Images that are rows of one array; nothing is copied until a row is read.

    Args:
        pixels: (N, h, w, 3) or (N, h, w) uint8, shared among the splits that use it.
        rows: (n,) which rows, in manifest order.
    """

    pixels: NDArray[np.uint8]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Image:
        return np.ascontiguousarray(self.pixels[self.rows[index]])

    def gather(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Images [start, stop) as one array (stop − start, h, w[, 3])."""
        rows = self.rows[start:stop]
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all()):
            return self.pixels[rows[0] : rows[-1] + 1]
        return self.pixels[rows]

    def take(self, kept: NDArray[np.int64]) -> "ArrayItems":
        """The images at the positions `kept`."""
        return ArrayItems(self.pixels, self.rows[kept])


@dataclass(frozen=True, eq=False)
class VectorItems:
    """Rows of a table.

    Args:
        values: (N, d) float32, shared among the splits that use it.
        rows: (n,) which rows, in manifest order.
    """

    values: NDArray[np.float32]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.values[self.rows[index]]
        return row


@dataclass(frozen=True, eq=False)
class FilesBelow(Sequence[Path]):
    """Paths below one folder, joined when asked for: a million `Path`s would take half a gigabyte.

    Args:
        folder: where they lie.
        relative: slash-separated path of each below it.
    """

    folder: Path
    relative: Sequence[str]

    def __len__(self) -> int:
        return len(self.relative)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> "FilesBelow": ...
    def __getitem__(self, index: int | slice) -> "Path | FilesBelow":
        if isinstance(index, slice):
            return FilesBelow(self.folder, self.relative[index])
        return self.folder / self.relative[index]


@dataclass(frozen=True, eq=False)
class FileItems:
    """Images that are files, decoded when read.

    Args:
        files: one path per image, in manifest order.
    """

    files: Sequence[Path]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Image:
        return decode(self.files[index])

    def take(self, kept: NDArray[np.int64]) -> "FileItems":
        """The images at the positions `kept`."""
        return FileItems([self.files[int(i)] for i in kept])


def decode(path: Path) -> Image:
    """Return the pixels of an image file: (h, w) if it is 8-bit grey, else (h, w, 3).

    Raises:
        DataError: the file cannot be read as an image; it is never replaced by something else.
    """
    try:
        with Pillow.open(path) as image:
            return np.asarray(image if image.mode == "L" else image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        raise DataError(
            f"image '{path}' cannot be read — {error} — get the file again, or delete it and run with "
            "benchmark.incomplete=allow, which records it as missing"
        ) from error
