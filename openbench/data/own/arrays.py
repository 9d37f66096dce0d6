"""A user's own images in an `.npz` file, or in an Arrow folder as Hugging Face's `save_to_disk` writes it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.benchmark import Image, check_distinct
from openbench.data.own.contents import contents_within, state_of
from openbench.data.sources.items import UNREADABLE, pixels_of, read_bytes
from openbench.data.sources.npz_file import read_npz
from openbench.digest import bytes_sha256
from openbench.errors import DataError

_IMAGES = ("images", "X", "x", "data")
_LABELS = ("labels", "y", "label", "targets")
_NAMES = ("classes", "names", "label_names")


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
    s = path.stat()
    return _npz(path, (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns))


@lru_cache(maxsize=8)
def _npz(path: Path, state: tuple[int, ...]) -> Npz:
    whole = path.read_bytes()
    way = "write it with numpy.savez(path, images=..., labels=...)"
    held = read_npz(path, (*_IMAGES, *_LABELS, *_NAMES), way, whole)
    contents = np.frombuffer(bytes.fromhex(bytes_sha256(whole)), dtype=np.uint8)[None]
    pixels = next((held[name] for name in _IMAGES if name in held), None)
    if pixels is None:
        raise DataError(f"'{path}' holds no images — expected an array named {' or '.join(_IMAGES)}")
    pixels = _as_images(pixels, path)
    labels = next((held[name] for name in _LABELS if name in held), None)
    if labels is None:
        return Npz(pixels, ("-",) * len(pixels), contents)
    names = next((held[name] for name in _NAMES if name in held), None)
    return Npz(pixels, tuple(_named(labels, names, len(pixels), path)), contents)


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
    contents = contents_within(files, len(column), lambda: rows_of)
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

    try:
        held = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        files = [folder / entry["filename"] for entry in held["_data_files"]]
        if held.get("_indices_data_files"):
            raise DataError(f"'{folder}' stores a selection of rows separately — save it again after flatten_indices()")
        table = pa.concat_tables([pa.ipc.open_stream(pa.memory_map(str(file))).read_all() for file in files])
    except (OSError, KeyError, ValueError, pa.ArrowInvalid) as error:
        raise DataError(f"'{folder}' cannot be read — {error} — write it again with save_to_disk") from error
    return table, dict(info.get("features") or {})
