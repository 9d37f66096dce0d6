"""Lists of a user's own images: a folder with a subfolder per class, a `.csv`, an `.npz`, or a Hugging Face folder."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from openbench import paths
from openbench.data.own.arrays import arrow_labels, is_arrow, npz
from openbench.errors import DataError

# Row of a list: the image's key, and its class; `-` where there is none.
Row = tuple[str, str]
NO_CLASS = "-"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


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
        rows = list(_csv_rows(path))
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
        folders[:] = [n for n in sorted(folders) if not n.startswith(".") and _is_new(Path(place, n), seen)]
        inside = Path(place).relative_to(folder)
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                key = (inside / name).as_posix()
                _check_text(key, folder)
                rows.append((key, inside.parts[0] if inside.parts else NO_CLASS))
    return rows


def _identity(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def _is_new(folder: Path, seen: set[tuple[int, int]]) -> bool:
    """Whether a folder is met for the first time; it is then noted in `seen`."""
    identity = _identity(folder)
    if identity in seen:
        return False
    seen.add(identity)
    return True


def _check_text(key: str, folder: Path) -> None:
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"'{folder}': the file name {os.fsencode(key)!r} is not UTF-8 — lists of images hold UTF-8 text — rename it"
        ) from error
    if not key.isprintable():
        raise DataError(f"'{folder}': the name {key!r} has control characters — rename it")


def _csv_rows(path: Path) -> Iterator[Row]:
    try:
        yield from _lines_of_csv(path)
    except (OSError, csv.Error) as error:
        raise DataError(
            f"'{path}' cannot be read — {error} — text in UTF-8 with the columns path and label expected"
        ) from error


def _text(path: Path) -> str:
    """All that a list says, also in columns that nothing reads: what is half understood is not read at all."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"'{path}' line {line}: the byte {error.object[error.start]:#04x} is not UTF-8 — lists of images hold "
            "UTF-8 text — save the list as UTF-8"
        ) from error


def _lines_of_csv(path: Path) -> Iterator[Row]:
    with io.StringIO(_text(path), newline="") as stream:
        reader = csv.DictReader(stream)
        columns = [name.strip() for name in reader.fieldnames or ()]
        if "path" not in columns:
            raise DataError(
                f"'{path}' line 1: found the columns {columns} — `path` is needed, and `label` for classes; "
                "write e.g. path,label"
            )
        reader.fieldnames = columns
        seen: dict[str, int] = {}
        for row in reader:
            line = reader.line_num
            if None in row or None in row.values():
                raise DataError(
                    f"'{path}' line {line}: {_width(row)} values, the header has {len(columns)} columns — "
                    "put quotes around a path that holds a comma"
                )
            key, label = row["path"].strip(), row.get("label", NO_CLASS).strip()
            if not key or not label:
                raise DataError(
                    f"'{path}' line {line}: path {key!r}, label {label!r} — both are needed; `-` = no class"
                )
            _check_text(key, path)
            _check_text(label, path)
            if key in seen:
                raise DataError(f"'{path}' line {line}: '{key}' is on line {seen[key]} already — list each image once")
            seen[key] = line
            yield key, label


def _width(row: dict[str | None, object]) -> int:
    extra = row.get(None)
    return sum(v is not None for k, v in row.items() if k is not None) + (len(extra) if isinstance(extra, list) else 0)
