"""A user's own images: a folder with a subfolder per class, a `.csv`, an `.npz`, or a folder of Hugging Face.

`read_rows` lists them, `OwnImages` is their source, and `contents_of` gives the digests by which they are known.
"""

import csv
import io
import json
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.core.benchmark import Image, check_distinct
from openbench.data.sources.archives import read_npz
from openbench.data.sources.base import Found, ImageFolder, Source, rows_found
from openbench.data.sources.items import UNREADABLE, FileItems, pixels_of, read_bytes
from openbench.digest import bytes_sha256, digest, file_sha256
from openbench.errors import DataError
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

# Row of a list: the image's key, and its class; `-` where there is none.
Row = tuple[str, str]
NO_CLASS = "-"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
# (n, 32) uint8: the SHA-256 of each file.
Contents = NDArray[np.uint8]
_IMAGES = ("images", "X", "x", "data")
_LABELS = ("labels", "y", "label", "targets")
_NAMES = ("classes", "names", "label_names")


@dataclass(frozen=True)
class OwnImages(Source):
    """The user's own images: a folder of files, a `.csv` that lists files, an `.npz`, or a Hugging Face folder.

    Keys are paths relative to the folder (to the `.csv`'s folder), or `<class>/<number>` for arrays.

    Args:
        path: absolute, or relative to a data root or the working directory.
        deviation: how these images differ from the set as published; own sets have no other version.
    """

    path: str
    deviation: str = ""

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """The path itself, or below each root and the working directory."""
        given = Path(self.path).expanduser()
        return [given] if given.is_absolute() else [*(root / given for root in roots), Path.cwd() / given]

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """The keys that are there; files are listed by folder, rows of arrays looked up by number and class."""
        if own_path(str(place.absolute())) is None:
            return None
        if place.is_file() and place.suffix != ".csv":
            pack = npz(place)
            rows = rows_found(pack.pixels, _rows(list(pack.labels), keys))
            return replace(rows, files=(place,), contents=pack.contents)
        if place.is_dir() and is_arrow(place):
            numbers = _rows(arrow_labels(place), keys)
            present = numbers >= 0
            if not present.any():
                return None
            items, files = arrow_items(place, numbers[present])
            return Found(items, present, files)
        found = ImageFolder().find(place.parent if place.is_file() else place, keys)
        return replace(found, files=found.items.files) if found and isinstance(found.items, FileItems) else found


def _rows(labels: list[str], keys: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    row_of = {key: row for row, (key, _) in enumerate(numbered(labels))}
    return np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)


def own_path(name: str) -> Path | None:
    """Return the folder or file of the user's own images that `name` means, or None if there is no such place.

    Args:
        name: an absolute path, one that begins with `~`, or one relative to a data root or the working directory.
    """
    path = Path(name).expanduser()
    candidates = [path] if path.is_absolute() else [root / path for root in (*paths.data_roots(), Path.cwd())]
    for candidate in candidates:
        if candidate.is_dir() or (candidate.is_file() and candidate.suffix in (".csv", ".npz")):
            return candidate
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
        rows = numbered(list(npz(path).labels))
    elif is_arrow(path):
        rows = numbered(arrow_labels(path))
    else:
        rows = _folder_rows(path)
    if not rows:
        raise DataError(
            f"own images: none found in '{path}' — expected: a folder with a subfolder per class "
            f"({', '.join(sorted(SUFFIXES))}), a .csv with the columns path and label, an .npz with images and labels, "
            "or a folder written by Hugging Face's save_to_disk"
        )
    return rows


def numbered(labels: list[str]) -> list[Row]:
    """Return the rows of a container without file names: the key is `<class>/<number>`, numbers from 0."""
    return [(f"{label}/{number:06d}", label) for number, label in enumerate(labels)]


def _folder_rows(folder: Path) -> list[Row]:
    """Every image file below a folder; its class is the first subfolder on the way, `-` for files that lie in it."""
    rows = []
    seen = {_identity(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        # A link to a folder that was listed already, such as one to itself, brings no new images.
        new = {_identity(Path(place, name)): name for name in sorted(folders, reverse=True) if name[0] != "."}
        folders[:] = sorted(name for identity, name in new.items() if identity not in seen)
        seen.update(new)
        inside = Path(place).relative_to(folder)
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                key = (inside / name).as_posix()
                _check_text(key, f"'{folder}'")
                rows.append((key, inside.parts[0] if inside.parts else NO_CLASS))
    return rows


def _identity(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def _check_text(key: str, where: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the file name {os.fsencode(key)!r} is not UTF-8 — lists of images hold UTF-8 text — rename it"
        ) from error
    if not key.isprintable():
        raise DataError(f"{where}: the name {key!r} has control characters — rename it")


def _check_row(row: list[str], columns: list[str], entry: Row, seen: Mapping[str, int], where: str) -> None:
    key, label = entry
    if len(row) != len(columns):
        raise DataError(
            f"{where}: {len(row)} values, the header has {len(columns)} columns — put quotes around a path that holds "
            "a comma"
        )
    if not key or not label:
        raise DataError(f"{where}: path {key!r}, label {label!r} — both are needed; `-` = no class")
    _check_text(key, where)
    _check_text(label, where)
    if key in seen:
        raise DataError(f"{where}: '{key}' is on line {seen[key]} already — list each image once")


def read_list(path: Path) -> Iterator[Row]:
    """Yield key and class of each line of a list, in its order.

    Args:
        path: a CSV file, compressed if its name ends in `.xz`. Its columns are `path` and, unless no class is known,
            `label`; others are not read. Lines that begin with `#` may stand before the header.

    Raises:
        DataError: it cannot be read, a line is not an entry, or an image is listed twice.
    """
    try:
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode("utf-8-sig")
        lines = io.StringIO(text, newline="")
        notes = 0
        while text.startswith("#", lines.tell()):
            lines.readline()
            notes += 1
        reader = csv.reader(lines)
        columns = [name.strip() for name in next(reader, [])]
        if "path" not in columns:
            raise DataError(
                f"'{path}' line {notes + 1}: found the columns {columns} — `path` is needed, and `label` for classes; "
                "write e.g. path,label"
            )
        of_key, of_label = columns.index("path"), columns.index("label") if "label" in columns else None
        plain = text.replace("\r", "").replace("\n", "").isprintable()  # else each text is looked at
        seen: dict[str, int] = {}
        for row in filter(None, reader):
            key, label = row[of_key].strip() if len(row) == len(columns) else "", NO_CLASS
            if key and of_label is not None:
                label = row[of_label].strip()
            line = notes + reader.line_num
            if not key or not label or not plain or key in seen:
                _check_row(row, columns, (key, label), seen, f"'{path}' line {line}")
            seen[key] = line
            yield key, label
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise DataError(f"'{path}' line {line}: the byte {byte:#04x} is not UTF-8 — save the list as UTF-8") from error
    except (OSError, EOFError, lzma.LZMAError, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read — {error} — text in UTF-8 expected") from error


@dataclass(frozen=True, eq=False)
class Npz:
    """The images of an `.npz`, all from one reading of the file.

    Args:
        pixels: (n, h, w) or (n, h, w, 3) uint8.
        labels: the class of each image, as text; `-` if the file holds no labels.
        contents: (1, 32) uint8, the SHA-256 of the file that these came from.
    """

    pixels: NDArray[np.uint8]
    labels: tuple[str, ...]
    contents: NDArray[np.uint8]


def npz(path: Path) -> Npz:
    """Return the images of an `.npz`, read again if the file system tells of a change.

    Raises:
        DataError: the file cannot be read, or its arrays are not images and labels.
    """
    return _npz(path, state_of([path]))


@lru_cache(maxsize=8)
def _npz(path: Path, state: str) -> Npz:
    whole = path.read_bytes()
    way = "write it with numpy.savez(path, images=..., labels=...)"
    held = read_npz(path, (*_IMAGES, *_LABELS, *_NAMES), way, whole)
    pixels, labels, names = (next((held[n] for n in kind if n in held), None) for kind in (_IMAGES, _LABELS, _NAMES))
    if pixels is None:
        raise DataError(f"'{path}' holds no images — expected an array named {' or '.join(_IMAGES)}")
    pixels = _as_images(pixels, path)
    shown = [NO_CLASS] * len(pixels) if labels is None else _named(labels, names, len(pixels), path)
    return Npz(pixels, tuple(shown), np.frombuffer(bytes.fromhex(bytes_sha256(whole)), dtype=np.uint8)[None])


def _as_images(pixels: NDArray[Any], path: Path) -> NDArray[np.uint8]:
    if pixels.dtype != np.uint8 or pixels.ndim not in (3, 4):
        raise DataError(
            f"'{path}': images are {pixels.dtype} {pixels.shape} — uint8 (n, h, w) or (n, h, w, 3) expected; for "
            "values in [0, 1] save (255 * x).round().astype('uint8'), and reshape rows to images"
        )
    if 0 in pixels.shape[1:]:
        raise DataError(f"'{path}': images of shape {pixels.shape[1:]} — at least one pixel expected")
    if pixels.ndim == 3:
        return pixels
    if pixels.shape[3] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.shape[3] not in (1, 3):
        raise DataError(f"'{path}': images of shape {pixels.shape[1:]} — 1 or 3 channels expected")
    return pixels[..., 0] if pixels.shape[3] == 1 else pixels


def _named(labels: NDArray[Any], names: NDArray[Any] | None, count: int, path: Path) -> list[str]:
    if labels.shape not in ((count,), (count, 1)):
        raise DataError(f"'{path}': {count} images and labels of shape {labels.shape} — one label per image expected")
    flat = labels.reshape(-1)
    if flat.dtype.kind not in "iuU":
        raise DataError(f"'{path}': labels are {flat.dtype} — whole numbers or text expected")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "iuUS"):
        raise DataError(f"'{path}': class names are {names.dtype} {names.shape} — text (c,) expected")
    if names is not None:
        check_distinct([str(name) for name in names.tolist()], f"'{path}'")
    if names is None or flat.dtype.kind == "U":
        return [str(value) for value in flat.tolist()]
    if len(flat) and (flat.min() < 0 or flat.max() >= len(names)):
        raise DataError(f"'{path}': labels from {flat.min()} to {flat.max()} — {len(names)} class names are given")
    return [str(names[value]) for value in flat.tolist()]


@dataclass(frozen=True, eq=False)
class EncodedItems:
    """Images as compressed files inside an Arrow table.

    Args:
        column: chunked array of `{bytes, path}`.
        rows: (n,) which rows, in manifest order.
        folder: where the table lies; its paths are relative to this.
        contents: (N, 32) uint8, the SHA-256 of each row's compressed image.
    """

    column: Any
    rows: NDArray[np.int64]
    folder: Path
    contents: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Image:
        row = int(self.rows[index])
        content = self.encoded(index)
        if bytes_sha256(content) != self.contents[row].tobytes().hex():
            raise DataError(
                f"'{self.folder}': image {row} has changed since this folder was first read — its bytes no longer "
                "match its digest — leave the folder alone while a run reads it; write it again and run again"
            )
        try:
            return pixels_of(content)
        except UNREADABLE as error:
            raise DataError(
                f"'{self.folder}': image {row} cannot be read — {error} — write the folder again"
            ) from error

    def encoded(self, index: int) -> bytes:
        """The compressed image."""
        return _content(self.column[int(self.rows[index])].as_py(), self.folder)


def _content(cell: Mapping[str, Any] | None, folder: Path) -> bytes:
    """The compressed image of a cell, which may name a file in its place; nothing where there is none."""
    content: bytes | None = cell.get("bytes") if cell else None
    if content is None and cell and cell.get("path"):
        return read_bytes(folder / cell["path"])
    return content or b""


def is_arrow(folder: Path) -> bool:
    """Whether a folder is one that `save_to_disk` writes, of one data set or of several splits."""
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def arrow_labels(folder: Path) -> list[str]:
    """Return the class of each image of an Arrow folder; `-` if it has no label column.

    Raises:
        DataError: it holds several splits, no image column, or files that cannot be read.
    """
    table, features = _arrow(folder)
    for name in ("label", "labels", "fine_label"):
        if name in table.column_names:
            values, names = table[name].to_pylist(), features.get(name, {}).get("names")
            check_distinct([str(known) for known in names or ()], f"'{folder}'")
            try:
                return [str(names[v]) if names else str(v) for v in values]
            except (IndexError, TypeError) as error:
                raise DataError(
                    f"'{folder}': column '{name}' has labels without a class name — write the folder again"
                ) from error
    return ["-"] * len(table)


def arrow_items(folder: Path, rows: NDArray[np.int64]) -> tuple[EncodedItems, tuple[Path, ...]]:
    """Return the images at `rows` of an Arrow folder, decoded when read, and the files in which these and others lie.

    Raises:
        DataError: it holds several splits, no image column, or files that cannot be read.
    """
    table, features = _arrow(folder)
    images = [name for name, feature in features.items() if feature.get("_type") == "Image"]
    if len(images) != 1 or images[0] not in table.column_names:
        found = ", ".join(f"{name} ({feature.get('_type', '?')})" for name, feature in features.items())
        raise DataError(f"'{folder}': found the columns {found or 'none'} — exactly one of type Image expected")
    column = table[images[0]]
    place = getattr(column.type, "get_field_index", lambda name: -1)
    if min(place("bytes"), place("path")) < 0:
        raise DataError(f"'{folder}': column '{images[0]}' is {column.type} — a struct of bytes and path expected")
    files = (*_files(folder), *(folder / path for path in _paths(column)))
    # Read before the digest of the files is taken: a change in between is then found when the image is decoded.
    rows_of = (bytes_sha256(_content(cell.as_py(), folder)) for cell in column)
    contents = contents_of(files, len(column), lambda: rows_of)
    return EncodedItems(column, rows, folder, contents), files


def _paths(column: Any) -> Iterator[str]:
    """The paths of the images whose bytes are not in the column."""
    for chunk in column.chunks:
        outside = chunk.filter(chunk.field("bytes").is_null())
        yield from (cell["path"] for cell in outside.to_pylist() if cell and cell["path"])


def _files(folder: Path) -> tuple[Path, ...]:
    """The files of an Arrow folder that say what is in it."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return (folder / "dataset_info.json", *(folder / entry["filename"] for entry in state["_data_files"]))


def _arrow(folder: Path) -> tuple[Any, dict[str, dict[str, Any]]]:
    """The memory-mapped table, and the features by column name."""
    splits = folder / "dataset_dict.json"
    if splits.is_file():
        names = json.loads(splits.read_text(encoding="utf-8")).get("splits", [])
        raise DataError(
            f"'{folder}' holds the splits {names} — name one of them, e.g. {folder / (names or ['train'])[0]}"
        )
    try:
        return _table(folder, state_of((folder / "state.json", *_files(folder))))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{folder}' cannot be read — {error} — write it again with save_to_disk") from error


@lru_cache(maxsize=8)
def _table(folder: Path, state: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    import pyarrow as pa

    held = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
    if held.get("_indices_data_files"):
        raise DataError(f"'{folder}' stores a selection of rows separately — save it again after flatten_indices()")
    files = [folder / entry["filename"] for entry in held["_data_files"]]
    table = pa.concat_tables([pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files])
    return table, dict(info.get("features") or {})


def contents_of(
    files: Sequence[Path | str], count: int | None = None, read: Callable[[], Iterable[str]] | None = None
) -> Contents:
    """Return the SHA-256 of the bytes of each file, or of each image in files that hold many, (n, 32) uint8.

    The files are read when they are first seen in a place; afterwards only if the file system reports a change: size,
    either time stamp, or another file under the same name. The digests are kept in the cache folder; deleting them is
    safe. When a file is decoded later, its bytes are compared with its digest; see `items.FileItems`.

    Args:
        files: all that the images are read from.
        count: how many images they hold; None = each file is one.
        read: returns the SHA-256 of each image in files that hold many.

    Raises:
        DataError: a file cannot be read.
    """
    wanted = len(files) if count is None else count
    try:
        known = paths.cache_dir() / "contents" / f"{state_of(files)}{'-rows' if read else ''}"
        with suppress(FileNotFoundError, DamagedError):
            found = np.frombuffer(read_sealed(known), dtype=np.uint8)
            if found.size == 32 * wanted:
                return found.reshape(-1, 32)
        joined = b"".join(map(bytes.fromhex, read() if read else map(file_sha256, files)))
    except OSError as error:
        raise DataError(
            f"'{error.filename}' cannot be read — {error.strerror} — get the file again, or list the images again"
        ) from error
    with suppress(OSError):  # if the cache cannot be written, the files are read each time
        write_sealed(known, joined)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)


def digest_of(contents: Contents) -> str:
    """Return one digest of all files in order; it does not depend on where they lie or when they were written."""
    return digest([row.tobytes().hex() for row in contents], 32)


def state_of(files: Sequence[Path | str]) -> str:
    """Return a digest of what the file system reports of files: which they are, their sizes and both time stamps.

    Raises:
        OSError: one is not there.
    """
    stats = [os.stat(path) for path in files]
    return digest(
        [(str(path), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in zip(files, stats, strict=True)],
        32,
    )
