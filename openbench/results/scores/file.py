"""A file of scores as columns, exactly as written: what is ragged, damaged or ambiguous is an error."""

import codecs
import csv
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError, did_you_mean
from openbench.results.escape import one_line
from openbench.results.scores.stored import COLUMNS

REQUIRED = ("score", "set", "role")
OPTIONAL = ("correct", "label", "prediction")
SUFFIXES = (".csv", ".parquet")

_PROBABILITY = re.compile(r"p_([0-9]+)")
_CHUNK = 1 << 24  # bytes looked through, and parsed, at a time


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """The columns of a file that have a meaning here, one row per scored image.

    Args:
        path: the file.
        columns: name → pyarrow column of all rows, in the types of the file; text for `.csv`.
        rows: (n,) each row's place in the file, counted from 0 and without the header; for messages.
    """

    path: Path
    columns: dict[str, Any]
    rows: NDArray[np.int64]

    @property
    def classes(self) -> list[str]:
        """The probability columns, by class."""
        return [f"p_{k}" for k in range(sum(name.startswith("p_") for name in self.columns))]

    def where(self, position: int) -> str:
        """Name the file and the place of a row, the way the reader's editor counts."""
        row = int(self.rows[position])
        if self.path.suffix == ".parquet":
            return f"{self.path}, row {row}"
        for number, (line, _) in enumerate(_records(self.path)):
            if number == row + 1:  # record 0 is the header
                return f"{self.path}, line {line}"
        return f"{self.path}, row {row}"


def read_table(path: Path) -> ScoreTable:
    """Return the columns `score`, `set`, `role`, and of the optional ones those that are there.

    CSV: UTF-8 with commas, quotes doubled within quotes; a byte order mark, any line ends and empty lines are fine.
    Parquet: pages are compared with their checksums, where the file has them.

    Args:
        path: the file.

    Raises:
        DataError: no such file, another format, columns that are missing or doubled, rows longer or shorter than the
            header, or damage.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"'{path}' is not a file of scores that can be read — allowed: {', '.join(SUFFIXES)}")
    _check_file(path)
    table = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    if table.rows.size == 0:
        raise _no_rows(path)
    return table


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise DataError(f"file of scores '{path}' not found") from error
    except OSError as error:
        raise DataError(f"file of scores '{path}' cannot be opened — {error.strerror}") from error
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise DataError(f"file of scores '{path}' — found {kind} — allowed: a regular file")


def _no_rows(path: Path) -> DataError:
    return DataError(f"{path} has no rows — one per scored image is expected")


def _unreadable(path: Path, error: Exception) -> DataError:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(f"{path} cannot be read as {path.suffix[1:]} — {text} — write the file again")


def _known(names: list[str], path: Path) -> list[str]:
    """Return the columns that have a meaning here, after checking that they are there, once, without a gap."""
    for name in REQUIRED:
        if name not in names:
            found = [one_line(other) for other in names]
            raise DataError(
                f"{path} has no column '{name}'{did_you_mean(name, found)} — found: {', '.join(found)} — needed: "
                f"{', '.join(REQUIRED)}; optional: {', '.join(OPTIONAL)}, p_0 … p_{{c-1}}"
            )
    numbered = [match.group(1) for name in names if (match := _PROBABILITY.fullmatch(name))]
    known = [name for name in names if name in (*REQUIRED, *OPTIONAL) or _PROBABILITY.fullmatch(name)]
    doubled = sorted({name for name in known if known.count(name) > 1})
    if doubled:
        raise DataError(
            f"{path} has the column '{doubled[0]}' {known.count(doubled[0])} times — keep one column of each name"
        )
    if sorted(numbered, key=int) != [str(k) for k in range(len(numbered))]:
        raise DataError(
            f"{path}: the probability columns must be p_0 … p_{{c-1}} without a gap — found p_"
            f"{', p_'.join(sorted(numbered, key=int))}"
        )
    return known


def _read_parquet(path: Path) -> ScoreTable:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not `read_table`, which would take a folder called `set=x` for a column.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            known = _known(schema.names, path)
            if b"run_id" in (schema.metadata or {}) and tuple(schema.names) != COLUMNS:
                # The checksums are those of the pages: a name damaged in the footer would hide its column.
                raise ValueError(f"the scores of a run have the columns {', '.join(COLUMNS)}, found {schema.names}")
            table = file.read(columns=known)
            _check_counts(file.metadata, table)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise _unreadable(path, error) from error
    return ScoreTable(path, {name: table.column(name) for name in known}, np.arange(table.num_rows))


def _check_counts(metadata: Any, table: Any) -> None:
    """Check that the rows of the file, of its groups and of what was read are equally many."""
    # Single columns of a damaged footer are not looked at: the library would end the process.
    counts = metadata.num_rows, sum(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups))
    if counts != (table.num_rows, table.num_rows):
        raise ValueError("the counts of rows in its footer disagree")


def _read_csv(path: Path) -> ScoreTable:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    quoted = _check_text(path)
    known = _known(_header(path), path)
    names = pa.dictionary(pa.int32(), pa.string())
    types = {name: names if name in ("set", "role") else pa.string() for name in known}
    if next(islice(_records(path), 1, None), None) is None:
        raise _no_rows(path)
    try:
        with path.open("rb") as file:
            table = arrow_csv.read_csv(
                file,
                read_options=arrow_csv.ReadOptions(block_size=_CHUNK),
                parse_options=arrow_csv.ParseOptions(newlines_in_values=quoted),
                # Nothing is taken for a missing value: a set may be called NA.
                convert_options=arrow_csv.ConvertOptions(
                    column_types=types, include_columns=known, strings_can_be_null=False
                ),
            )
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        _check_lengths(path)
        raise _unreadable(path, error) from error
    table = table.unify_dictionaries()
    columns = {name: table.column(name) for name in known}
    # Spreadsheets leave rows of nothing but commas.
    empty = [pc.equal(_text(columns[name]), "") for name in ("score", "set", "role")]
    blank = pc.and_(pc.and_(empty[0], empty[1]), empty[2])
    rows = np.arange(table.num_rows)
    if pc.any(blank).as_py():
        for name in known:
            blank = pc.and_(blank, pc.equal(_text(columns[name]), ""))
        kept = pc.invert(blank)
        rows = rows[kept.to_numpy()]
        columns = {name: column.filter(kept) for name, column in columns.items()}
    return ScoreTable(path, columns, rows)


def _text(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def _check_text(path: Path) -> bool:
    """Return whether there are quotes, after checking that the bytes are UTF-8 text whose quotes are closed.

    An open quote swallows the rows up to the next one, or to the end of the file.
    """
    decoder, quotes, line = codecs.getincrementaldecoder("utf-8")(), 0, 1
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                if b"\0" in chunk:
                    line += chunk[: chunk.index(b"\0")].count(b"\n")
                    raise DataError(
                        f"{path}, line {line}: found a NUL byte — allowed: UTF-8 text with commas — convert the file"
                    )
                decoder.decode(chunk)
                quotes += chunk.count(b'"')
                line += chunk.count(b"\n")
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise DataError(f"{path}, line {line}: {error.reason} — allowed: UTF-8 text — convert the file") from error
    except OSError as error:
        raise DataError(f"file of scores '{path}' cannot be read — {error.strerror}") from error
    if quotes % 2:
        raise DataError(
            f"{path}: a quote is not closed — found an odd number of quotes, {quotes} — write the file again"
        )
    return quotes > 0


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record starts, and its fields; slow, for headers and messages."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader, line = csv.reader(file), 1
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1


def _header(path: Path) -> list[str]:
    try:
        _, names = next(_records(path), (0, []))
    except csv.Error as error:
        raise _unreadable(path, error) from error
    if not names:
        raise DataError(f"{path} is empty — a header and one row per scored image are expected")
    other = next((mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        raise DataError(
            f"{path}: found columns separated by {other!r} — allowed: commas, and points in decimals — convert the file"
        )
    return names


def _check_lengths(path: Path) -> None:
    """Name the first row that has more or fewer fields than the header."""
    try:
        records = _records(path)
        _, header = next(records)
        for line, fields in records:
            if len(fields) != len(header):
                raise DataError(
                    f"{path}, line {line}: found {len(fields)} fields — allowed: {len(header)}, as in the header — "
                    "quote a field that holds a comma"
                )
    except csv.Error as error:
        raise _unreadable(path, error) from error
