"""Numbers from one column of a table of images: csv, jsonl or parquet."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench.digest import file_sha256
from openbench.errors import DataError
from openbench.results.escape import one_line

SUFFIXES = (".csv", ".jsonl", ".parquet")
_PARQUET = b"PAR1"  # how every such file begins
_ERROR = "error"  # the column in which `score` says why an image has no score


def table_digest(path: Path) -> str:
    """Return what tells a table from others: the SHA-256 of the file.

    Raises:
        DataError: it cannot be read.
    """
    _check(path)
    try:
        return file_sha256(path)
    except OSError as error:
        raise DataError(f"table '{path}' cannot be read — {error.strerror or error}") from error


def numbers(path: Path, column: str) -> NDArray[np.float64]:
    """Return a column (n,) of finite numbers, in the order of the rows; rows with an error in place of it are left out.

    Args:
        path: a .csv with a header, a .jsonl with an object per line, or a .parquet file.
        column: its name.

    Raises:
        DataError: no such file or column, two of that name, no rows, or a value that is not a finite number.
    """
    _check(path)
    values, places = _of_parquet(path, column) if path.suffix == ".parquet" else _of_text(path, column)
    if not values.size:
        raise DataError(f"table '{path}' has no rows — give a table with a row per image")
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        where = f"{'row' if path.suffix == '.parquet' else 'line'} {places[bad[0]]}"
        raise DataError(
            f"table '{path}', {where}: column '{column}' — found {values[bad[0]]} — allowed: a finite number"
        )
    return values


def _of_parquet(path: Path, column: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The numbers, and which row of the file each stands in, from 1."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        names = list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    _check_once(path, column, names)
    kept = [column, *({_ERROR} & set(names))]
    try:
        table = pq.read_table(path, columns=kept, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    rows = np.arange(1, table.num_rows + 1)
    if _ERROR in kept:
        read = pc.or_(pc.is_valid(table.column(column)), pc.is_null(table.column(_ERROR)))
        table, rows = table.filter(read), rows[read.to_numpy()]
    found = table.column(column)
    if not (pa.types.is_floating(found.type) or pa.types.is_integer(found.type)) or found.null_count:
        what = f"{found.null_count} empty cells" if found.null_count else f"the type {found.type}"
        raise DataError(f"table '{path}': column '{column}' — found {what} — allowed: a number in every row")
    return np.asarray(found.to_numpy(), dtype=np.float64), rows


def _of_text(path: Path, column: str) -> tuple[NDArray[np.float64], list[int]]:
    """The numbers, and the line of the file that each stands in."""
    found: list[float] = []
    lines: list[int] = []
    for names, cells, line in _rows(path):
        _check_once(path, column, names)
        cell = cells[names.index(column)]
        if cell in ("", None) and _ERROR in names and cells[names.index(_ERROR)]:
            continue  # an image that could not be read
        try:
            if isinstance(cell, bool | None) or "_" in str(cell):  # Python alone reads 1_000 as a number
                raise ValueError
            found.append(float(cell))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
            shown = one_line(str(cell)[:60])
            raise DataError(
                f"table '{path}', line {line}: column '{column}' — found '{shown}' — allowed: a number"
            ) from None
        lines.append(line)
    return np.array(found, dtype=np.float64), lines


def _rows(path: Path) -> Iterator[tuple[list[str], list[object], int]]:
    """Names, cells and the line of each row."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            if path.suffix == ".jsonl":
                for line, text in enumerate(stream, 1):
                    if text.strip():
                        row = json.loads(text, object_pairs_hook=_Pairs)
                        if not isinstance(row, _Pairs):
                            raise ValueError(f"line {line} is not an object")
                        yield [name for name, _ in row], [value for _, value in row], line
                return
            reader = csv.reader(stream, strict=True)
            names = next(reader, [])
            for cells in reader:
                if len(cells) != len(names) and cells:
                    raise ValueError(f"line {reader.line_num} has {len(cells)} cells, the header {len(names)}")
                if cells:
                    yield names, list(cells), reader.line_num
    except UnicodeDecodeError as error:
        raise _no_text(path, error) from None
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise _damaged(path, error) from error


class _Pairs(list[tuple[str, object]]):
    """The names and values of a JSON object, among which a name may stand twice."""


def _check_once(path: Path, column: str, names: list[str]) -> None:
    """Refuse a table in which a column is missing, or of which two columns have its name or that of errors."""
    if column not in names:
        raise _no_column(path, column, names)
    for name in (column, _ERROR):
        if names.count(name) > 1:
            raise DataError(
                f"table '{path}' has {names.count(name)} columns '{name}' — one is needed — name the others otherwise"
            )


def _check(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise DataError(f"'{path}' is not a table that can be read — allowed: {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DataError(
            f"table '{path}' not found — a file is needed: python -m openbench score DETECTOR IMAGES > {path.name}"
        )


def _damaged(path: Path, error: Exception) -> DataError:
    told = one_line(str(error).splitlines()[0][:200]) if str(error) else type(error).__name__
    return DataError(f"table '{path}' cannot be read — {told} — write it again")


def _no_text(path: Path, error: UnicodeDecodeError) -> DataError:
    with open(path, "rb") as stream:
        parquet = stream.read(len(_PARQUET)) == _PARQUET
    found = "a Parquet file" if parquet else f"the byte {error.object[error.start]:#04x}, which is not UTF-8"
    then = f"name it '{path.with_suffix('.parquet').name}'" if parquet else "save it as UTF-8"
    return DataError(f"table '{path}' cannot be read — found {found} — allowed in a {path.suffix}: text — {then}")


def _no_column(path: Path, column: str, names: list[str]) -> DataError:
    shown = ", ".join(one_line(name[:40]) for name in names[:20])
    return DataError(f"table '{path}' has no column '{column}' — found: {shown} — python -m openbench score writes it")
