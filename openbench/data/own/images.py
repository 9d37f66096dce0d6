"""A user's own images: a folder with a subfolder per class, a `.csv` or an `.npz`."""

import csv
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.config.folders import config_folders
from openbench.core.benchmark import check_distinct
from openbench.data.sources.archives import read_npz
from openbench.data.sources.base import FileItems, FoundImages, ImageFolder, Source, rows_found
from openbench.digest import digest, file_sha256
from openbench.errors import DataError
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

Row = tuple[str, str]  # key and class of an image
NO_CLASS = "-"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
Contents = NDArray[np.uint8]  # (n, 32), the SHA-256 of each file
_IMAGES = ("images", "X", "x", "data")
_LABELS = ("labels", "y", "label", "targets")
_NAMES = ("classes", "names", "label_names")


@dataclass(frozen=True)
class OwnImages(Source):
    """The user's own images: a folder of files, a `.csv` that lists files, or an `.npz`.

    Keys are paths relative to the folder (to the `.csv`'s folder), or `<class>/<number>` in an `.npz`.

    Args:
        path: absolute, or relative to a data root or the working directory.
    """

    path: str

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the path itself, or the path below the working directory and each root."""
        return paths.places(self.path)

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Return the images with these keys: files by path, rows of arrays by number and class."""
        if own_path(str(place.absolute())) is None:
            return None
        if place.is_file() and place.suffix != ".csv":
            pixels, labels = npz(place)
            row_of = {key: row for row, (key, _) in enumerate(numbered(labels))}
            return rows_found(pixels, row_of, keys, (place,))
        images = ImageFolder().find(place.parent if place.is_file() else place, keys)
        return replace(images, files=images.items.files) if images and isinstance(images.items, FileItems) else images


def own_path(name: str) -> Path | None:
    """Return the folder or file of the user's own images with this name; None if there is none.

    Args:
        name: an absolute path, one that begins with `~`, or one relative to a data root, the working directory, or the
            folder of configs of an installed package.
    """
    for path in (*paths.places(name), *(place.path / name for place in config_folders()[1:])):
        if path.is_dir() or (path.is_file() and path.suffix in (".csv", ".npz")):
            return path
    return None


def read_rows(path: Path) -> list[Row]:
    """Return key and class of every image, sorted by key where the container has no order of its own.

    Args:
        path: what `own_path` returned.

    Raises:
        DataError: a line that is not an entry, labels that do not fit the images, or no images at all.
    """
    if path.suffix == ".csv" and path.is_file():
        rows = list(read_list(path))
    elif path.is_file():
        rows = numbered(npz(path)[1])
    else:
        rows = _folder_rows(path)
    if not rows:
        raise DataError(f"'{path}' has no images — name a folder of images, a .csv or an .npz")
    return rows


def numbered(labels: list[str]) -> list[Row]:
    """Return the rows of a file without names of images: the key is `<class>/<number>`, numbers from 0."""
    return [(f"{label}/{number:06d}", label) for number, label in enumerate(labels)]


def _folder_rows(folder: Path) -> list[Row]:
    """Every image file below a folder; its class is the first subfolder of its path, `-` without one."""
    rows = []
    seen = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        # A link to a folder that was listed already, such as one to itself, brings no new images.
        new = {os.path.realpath(f"{place}/{name}"): name for name in sorted(folders, reverse=True) if name[0] != "."}
        folders[:] = sorted(name for real, name in new.items() if real not in seen)
        seen.update(new)
        inside = Path(place).relative_to(folder)
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                key = (inside / name).as_posix()
                _check_text(key, f"'{folder}'")
                rows.append((key, inside.parts[0] if inside.parts else NO_CLASS))
    return rows


def _check_text(text: str, where: str) -> None:
    if not text.isprintable():
        raise DataError(f"{where}: the name {text!r} has control characters or is not UTF-8 — rename it")


def read_list(path: Path) -> Iterator[Row]:
    """Yield key and class of each line of a list, in its order.

    Args:
        path: a CSV file, compressed if its name ends in `.xz`, with the column `path` and, unless no class is known,
            `label`; other columns are ignored. Lines that begin with `#` may precede the header.

    Raises:
        DataError: it cannot be read, a line is incomplete, or an image is listed twice.
    """
    try:
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode("utf-8-sig")
        lines = text.splitlines(keepends=True)
        comments = sum(1 for _ in takewhile(lambda line: line.startswith("#"), lines))
        reader = csv.reader(lines[comments:])
        columns = [name.strip() for name in next(reader, [])]
        if "path" not in columns:
            raise DataError(f"'{path}' line {comments + 1}: the columns are {columns} — write path,label or path")
        key_at, label_at = columns.index("path"), columns.index("label") if "label" in columns else None
        line_of: dict[str, int] = {}
        for row in filter(None, reader):
            line, whole = comments + reader.line_num, len(row) == len(columns)
            key = row[key_at].strip() if whole else ""
            label = NO_CLASS if label_at is None else row[label_at].strip() if whole else ""
            if not (key and label):
                what = f"{row} for the columns {columns} — write both, and quotes around commas"
                raise DataError(f"'{path}' line {line}: {what}")
            if not (key.isprintable() and label.isprintable()):
                _check_text(f"{key},{label}", f"'{path}' line {line}")
            if line_of.setdefault(key, line) != line:
                raise DataError(f"'{path}' line {line}: '{key}' is on line {line_of[key]} too — list each image once")
            yield key, label
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read ({error}) — write it as text in UTF-8") from error


def npz(path: Path) -> tuple[NDArray[np.uint8], list[str]]:
    """Return the images of an `.npz`, (n, h, w) or (n, h, w, 3), and their classes, `-` if the file has no labels.

    Raises:
        DataError: the file cannot be read, or its arrays are not images and labels.
    """
    return _npz(path, state_of([path]))


@lru_cache(maxsize=8)
def _npz(path: Path, state: str) -> tuple[NDArray[np.uint8], list[str]]:
    arrays = read_npz(path, (*_IMAGES, *_LABELS, *_NAMES))
    pixels, labels, names = (
        next((arrays[n] for n in kind if n in arrays), None) for kind in (_IMAGES, _LABELS, _NAMES)
    )
    if pixels is None:
        raise DataError(f"'{path}' has no images — write them with numpy.savez(path, images=..., labels=...)")
    pixels = _as_images(pixels, path)
    count = len(pixels)
    if labels is None:
        return pixels, [NO_CLASS] * count
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iuU":
        raise DataError(f"'{path}': labels are {labels.dtype} {labels.shape} for {count} images — write one per image")
    known = None if names is None or labels.dtype.kind == "U" else np.atleast_1d(names).tolist()
    return pixels, _named(labels.reshape(-1).tolist(), known, f"'{path}'")


def _as_images(pixels: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    shape, dtype = pixels.shape, pixels.dtype
    if pixels.ndim == 4 and shape[3] not in (1, 3) and shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    colour = pixels.ndim == 4 and pixels.shape[3] in (1, 3)
    if dtype != np.uint8 or 0 in shape[1:] or not (pixels.ndim == 3 or colour):
        raise DataError(f"'{path}': images are {dtype} {shape} — write uint8 (n, h, w) or (n, h, w, 3)")
    return pixels[..., 0] if pixels.ndim == 4 and pixels.shape[3] == 1 else pixels


def _named(labels: Sequence[Any], names: Sequence[object] | None, where: str) -> list[str]:
    """The class of each image as text: its label, or the name that has this number."""
    if not names:
        return list(map(str, labels))
    classes = list(map(str, names))
    check_distinct(classes, where)
    if unknown := set(labels) - set(range(len(classes))):
        raise DataError(f"{where}: label {min(unknown)!r} has none of the {len(classes)} class names — name each class")
    return [classes[label] for label in labels]


def contents_of(files: Sequence[Path | str], read: Callable[[], Iterable[str]] | None = None) -> Contents:
    """Return the SHA-256 of each file, or of each image in files with many images, (n, 32) uint8.

    A file is read when it is new in its place, and again when the file system reports a change: its size, a time stamp,
    or another file under its name. The digests are cached. The bytes that are decoded later are compared with them.

    Args:
        files: all files of the images.
        read: returns the SHA-256 of each image, for files with many images; None = each file is one.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        cached = paths.cache_dir() / "contents" / f"{state_of(files)}{'-rows' if read else ''}"
        with suppress(FileNotFoundError, DamagedError):
            return np.frombuffer(read_sealed(cached), dtype=np.uint8).reshape(-1, 32)
        joined = b"".join(map(bytes.fromhex, read() if read else map(file_sha256, files)))
    except OSError as error:
        raise DataError(f"'{error.filename}' cannot be read ({error.strerror}) — get the file again") from error
    with suppress(OSError):  # a cache that cannot be written
        write_sealed(cached, joined)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)


def digest_of(contents: Contents) -> str:
    """Return one digest of all files in order, which does not depend on their places and times."""
    return digest([row.tobytes().hex() for row in contents], 32)


def state_of(files: Sequence[Path | str]) -> str:
    """Return a digest of the identities, sizes and time stamps of files.

    Raises:
        OSError: one is not there.
    """
    stats = [os.stat(path) for path in files]
    return digest(
        [(str(path), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in zip(files, stats, strict=True)],
        32,
    )
