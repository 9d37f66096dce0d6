"""Sources of images, the images that they find, which are decoded when they are read, and folders of files."""

import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.config.constraints import Checked
from openbench.core.benchmark import Image, Items, RowItems
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
            return content, np.asarray(picture if picture.mode in ("L", "RGB") else picture.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Pillow.DecompressionBombError) as error:
        why = str(error).partition(" <")[0]  # not where the bytes are in memory
        raise DataError(
            f"image '{path}' cannot be read ({why}) — get the file again, or delete it and run with "
            "benchmark.incomplete=allow, which records it as missing"
        ) from error


def spaced(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of `count` positions, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


@dataclass(frozen=True, eq=False)
class FoundImages:
    """The images of a manifest that a source has.

    Args:
        items: the images, in manifest order.
        present: (n,) bool, which keys of the manifest these are.
        files: the user's own files with these images; empty for published sets.
    """

    items: Items
    present: NDArray[np.bool_]
    files: Sequence[Path | str] = ()

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.present.sum())


@dataclass(frozen=True)
class Source(Checked, ABC):
    """A container layout. Subclasses are frozen dataclasses; a data set's config lists the sources that it may come in.

    Attributes:
        version: raised when a change of the source alters its images; enters the digest of a set.

    Args:
        deviation: how the images in this container differ from the published set; empty = they do not.
    """

    version: ClassVar[int] = 1

    deviation: str = field(default="", kw_only=True)

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the paths where this container is searched, in order, present or not.

        They are the folders `at` below each data root, if the source has such a field.
        """
        at: Sequence[str] = getattr(self, "at", ())
        return [root / folder for root in roots for folder in at] or [Path(f"(made by {type(self).__name__})")]

    @abstractmethod
    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the images at a place that have these keys; None if the container is not there.

        Raises:
            DataError: a damaged container.
        """

    def names_in(self, place: Path, folder: str) -> Iterable[str]:
        """Return the file names in a folder of keys, without hidden files, for sets that are given by a rule."""
        return (name for name in names_below(place / folder) if not name.startswith("."))


def raised_versions(source: Source) -> dict[str, int]:
    """Return class name → version where it is above 1, for the source and for the sources whose images it changes."""
    versions = {type(source).__qualname__: source.version} if source.version != 1 else {}
    for value in vars(source).values():
        for part in value.values() if isinstance(value, Mapping) else (value,):
            versions |= raised_versions(part) if isinstance(part, Source) else {}
    return versions


@dataclass(frozen=True)
class ImageFolder(Source):
    """Image files below a folder; keys are their paths.

    Args:
        at: folders to search, relative to each data root; `.` is the root itself.
        strip: leading part of each key that the folder tree lacks.
        flat: whether all files lie directly in the folder, without subfolders.
        blanks: the character in keys that stands for blanks in names of files and folders, e.g. `_`.
    """

    at: Sequence[str] = ("images_classic", "images_largescale", ".")
    strip: str = ""
    flat: bool = False
    blanks: str = ""

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the keys whose files exist; each folder is listed once, which is faster than a look-up per file."""
        files: list[str] = []
        present = np.zeros(len(keys), dtype=bool)
        listed: dict[str, dict[str, str]] = {}
        for position, key in enumerate(keys):
            folder, _, name = key.removeprefix(self.strip).rpartition("/")
            folder = "" if self.flat else folder
            if folder not in listed:
                if not listed and not names_below(place):
                    return None
                listed[folder] = self._paths_by_name(place, folder)
            if path := listed[folder].get(name):
                present[position] = True
                files.append(os.path.join(place, path))
        return FoundImages(FileItems(files), present) if files else None

    def _paths_by_name(self, place: Path, folder: str) -> dict[str, str]:
        """The path below `place` of each file in a folder, by its name in keys."""
        if not self.blanks:
            return {name: os.path.join(folder, name) for name in names_below(place / folder)}
        outer, last = os.path.split(folder)
        same = [name for name in names_below(place / outer) if name.replace(" ", self.blanks) == last]
        paths = [os.path.join(outer, inner, name) for inner in same for name in names_below(place / outer / inner)]
        return {os.path.basename(path).replace(" ", self.blanks): path for path in paths}

    def names_in(self, place: Path, folder: str) -> Iterable[str]:
        """Return the file names in a folder of keys, without hidden files."""
        return super().names_in(place, "" if self.flat else folder.removeprefix(self.strip))


@dataclass(frozen=True)
class ClassFolders(Source):
    """Image files in one folder per class, with keys without a class, e.g. ImageNet's validation images, sorted.

    Args:
        at: folders with the class folders, relative to each data root.
    """

    at: Sequence[str]

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the keys whose file names occur in one of the class folders."""
        folder_of = {name: folder for folder in sorted(names_below(place)) for name in names_below(place / folder)}
        names = [key.rpartition("/")[2] for key in keys] if folder_of else []
        present = np.array([name in folder_of for name in names], dtype=bool)
        files = [f"{place}/{folder_of[name]}/{name}" for name in names if name in folder_of]
        return FoundImages(FileItems(files), present) if files else None


def rows_found(
    array: NDArray[Any], row_of: Mapping[Any, int], keys: Iterable[Any], files: Sequence[Path] = ()
) -> FoundImages:
    """Return the images, or rows (n, d), of an array that have these keys, given the row of every key that there is."""
    rows = np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)
    chosen, present = rows[rows >= 0], rows >= 0
    return FoundImages(RowItems((array,), chosen) if array.ndim == 2 else ArrayItems(array, chosen), present, files)


def names_below(folder: Path) -> frozenset[str]:
    """Return the names of the files and folders in a folder; none if it is not there."""
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
