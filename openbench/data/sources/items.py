"""Images that are decoded when they are read: rows of an array, or files."""

import io
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.core.benchmark import Image
from openbench.digest import array_sha256, bytes_sha256
from openbench.errors import DataError

# What image sets come in; Pillow opens more, some of it by calling other programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# Pillow would clip these to white or black when it converts them to RGB.
DEEP = ("I", "F")


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


@dataclass(frozen=True, eq=False)
class MadeItems:
    """Items that are made when they are read.

    Args:
        count: of the items.
        make: position → item; an IndexError where there is none.
        of: what each is made of, where that tells whether two sets have the same one.
    """

    count: int
    make: Callable[[int], Image]
    of: Sequence[Hashable] = ()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Image:
        return self.make(index)


@dataclass(frozen=True, eq=False)
class FileItems:
    """Images that are files. A file that is replaced while a run uses it is an error.

    Args:
        files: one path per image, in manifest order; text, since a million `Path`s would take half a gigabyte.
        contents: (n, 32) uint8, the SHA-256 of each file; None where it is not known.
        pixels: position → `array_sha256` of the decoded image, where it is known.
    """

    files: Sequence[Path | str]
    contents: NDArray[np.uint8] | None = None
    pixels: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Image:
        path = Path(self.files[index])
        content, image = _read(path)
        if (self.contents is not None and bytes_sha256(content) != self.contents[index].tobytes().hex()) or (
            index in self.pixels and array_sha256(image) != self.pixels[index]
        ):
            raise DataError(f"image '{path}' has changed since this run first read it — run the command again")
        return image


def decode(path: Path) -> Image:
    """Return the pixels of an image file: (h, w) if it is 8-bit grey, else (h, w, 3).

    Colours of 16 bits are reduced to their upper 8 bits, as Pillow does. Grey images of 16 or 32 bits or of floats are
    refused: the file does not define black and white. An orientation in the EXIF data is not applied,
    as in torchvision and OpenOOD.

    Args:
        path: a file in one of FORMATS.

    Raises:
        DataError: the file cannot be read as an image; it is never replaced by something else.
    """
    return _read(path)[1]


def _read(path: Path) -> tuple[bytes, Image]:
    """The bytes and the pixels of an image file."""
    try:
        if not path.is_file():  # opening a pipe can wait for ever
            raise OSError("it is missing, or not a regular file")
        content = path.read_bytes()
        with Pillow.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.mode.startswith(DEEP):
                raise ValueError(f"more than 8 bits (mode {picture.mode}), scale it to 0…255 and save 8-bit grey")
            return content, np.asarray(picture if picture.mode == "L" else picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        raise DataError(
            f"image '{path}' cannot be read ({error}) — get the file again, or delete it and run with "
            "benchmark.incomplete=allow, which records it as missing"
        ) from error


def spaced(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of `count` positions, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
