"""Files of scores that others made: each cell is taken as it is written, or refused with its place."""

import csv
import io
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.scores import SetScores
from openbench.errors import DataError, did_you_mean
from openbench.metrics.suite import ROLES
from openbench.results.escape import one_line

ID_ROLES = ("id_test", "id_val", "csid")
_REQUIRED = ("score", "set", "role")
_OPTIONAL = ("correct", "label", "prediction", "image")
_SUFFIXES = (".csv", ".parquet")
_PROBABILITY = re.compile(r"p_([0-9]+)")
_BLOCK = 1 << 24  # bytes of a CSV that are parsed at a time
_EXACT = 2**53  # whole numbers up to here are all floats
_ROUNDING = 1e-6  # of a probability in float32
_SUM = 0.01  # of a row of probabilities, which may have been written with few digits
_TRUTH = {"1": ("True", "true", "TRUE"), "0": ("False", "false", "FALSE")}
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITE = r"^[+-]?(?i:inf|infinity)$"


def read_sets(path: Path) -> list[SetScores]:
    """Return the sets of a `.csv` or `.parquet` file, in the order in which they first appear.

    Columns: `score` (larger = more OOD), `set`, `role`; optionally, for ID-side rows, `correct` (0/1), `label` (class
    index), `prediction` (class index) and `p_0` … `p_{c-1}` (class probabilities); for any row `image`, its name.
    Correctness is `correct`, else `prediction == label`, else the largest probability's class. Further columns are not
    read.

    Scores become float64; decimals that share one are ties, numbers beyond 2^53 that do are an error. The same row
    twice is two images. CSV is UTF-8 with commas, quotes doubled within quotes.

    Args:
        path: the file.

    Raises:
        DataError: no such file, another format, a column that is missing, or a value that cannot be used; with the
            line (csv) or row (parquet) where it stands.
    """
    table = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    if table.rows.size == 0:
        raise _no_rows(path)
    names, name_codes = _labels(table, "set", "a name in every row")
    roles, role_codes = _labels(table, "role", ", ".join(ROLES))
    for number, role in enumerate(roles):
        hint = f"one of {', '.join(ROLES)}{did_you_mean(role, ROLES)}"
        _Cells(table, "role").refuse((role_codes == number) & (role not in ROLES), hint)
    for number, name in enumerate(names):
        _Cells(table, "set").refuse((name_codes == number) & (not name.isprintable()), "a name on one line")
    scores = _Cells(table, "score").scores()
    codes = role_codes.astype(np.int64) * len(names) + name_codes
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    return [
        _set_scores(names[name_codes[rows[0]]], roles[role_codes[rows[0]]], table.take(rows), scores[rows])
        for rows in sorted(groups, key=lambda rows: int(rows[0]))
    ]


@dataclass(frozen=True, eq=False)
class _Table:
    """The columns of a file that have a meaning here, one row per scored image.

    Args:
        path: the file.
        columns: name → pyarrow column, in the types of the file; text for `.csv`.
        rows: (n,) each row's place in the file, counted from 0 and without the header; for messages.
    """

    path: Path
    columns: dict[str, Any]
    rows: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> "_Table":
        """Return some of the rows."""
        import pyarrow as pa

        columns = {name: column.take(pa.array(rows)) for name, column in self.columns.items()}
        return _Table(self.path, columns, self.rows[rows])

    def where(self, position: int) -> str:
        """Return the file and the place of a row, the way the reader's editor counts."""
        row = int(self.rows[position])
        if self.path.suffix == ".parquet":
            return f"{self.path}, row {row}"
        line = next(line for number, (line, _) in enumerate(_records(self.path.read_text("utf-8-sig"))) if number > row)
        return f"{self.path}, line {line}"


class _Cells:
    """One column.

    Args:
        table: the rows.
        name: of the column.
    """

    def __init__(self, table: _Table, name: str) -> None:
        import pyarrow as pa

        cells = table.columns[name]
        kind = cells.type.value_type if pa.types.is_dictionary(cells.type) else cells.type
        self.is_text = bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())
        self.table, self.name, self.cells = table, name, cells.cast(pa.string() if self.is_text else kind)

    def blank(self) -> NDArray[np.bool_]:
        """(n,) whether nothing stands there: null, or empty text."""
        import pyarrow.compute as pc

        missing = self.cells.is_null()
        if self.is_text:
            missing = pc.or_(missing, pc.fill_null(pc.equal(self.cells, ""), False))
        return np.asarray(missing.to_numpy(), dtype=bool)

    def refuse(self, bad: NDArray[Any], allowed: str) -> None:
        """Raise a DataError that names the first of the `bad` cells (n,); without any, do nothing."""
        if not bad.any():
            return
        first, count = int(bad.argmax()), int(bad.sum())
        value = self.cells[first].as_py()
        written = "null" if value is None else f"'{one_line(str(value))}'"
        more = f" and {count - 1} more like it" if count > 1 else ""
        raise DataError(f"{self.table.where(first)}: {self.name} is {written}{more} — allowed: {allowed}")

    def scores(self) -> NDArray[np.float64]:
        """(n,) numbers, ±inf among them, in the order of what was written.

        Text and decimals are rounded to the nearest float64: two that have the same one are a tie. From 2^53 on, where
        float64 no longer holds every whole number, two different ones with the same float64 are refused.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers = self.numbers("a number")
        large = np.flatnonzero(np.isfinite(numbers) & (np.abs(numbers) >= _EXACT))
        if pa.types.is_floating(self.cells.type) or not large.size:
            return numbers
        cells = self.cells.take(pa.array(large))
        written = (pc.utf8_trim_whitespace(cells) if self.is_text else cells).to_pylist()
        seen: dict[float, Decimal] = {}
        for place, value, number in zip(large, map(Decimal, written), numbers[large].tolist(), strict=True):
            same = seen.setdefault(number, value)
            collides = (np.arange(numbers.size) == place) & (same != value)
            self.refuse(collides, f"scores that float64 tells apart; {same} is the same number there")
        return numbers

    def indices(self, classes: int | None = None) -> NDArray[np.int64]:
        """(n,) class indices: whole numbers ≥ 0, below `classes` if that is known."""
        allowed = "a class index ≥ 0" if classes is None else f"a class index from 0 to {classes - 1}"
        numbers = self.numbers(allowed)
        most = _EXACT if classes is None else classes - 1
        self.refuse((numbers < 0) | (numbers != np.floor(numbers)) | (numbers > most), allowed)
        return numbers.astype(np.int64)

    def truths(self) -> NDArray[np.float64]:
        """(n,) 0 or 1, also written as False or True."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = self.cells.cast(pa.int8()) if pa.types.is_boolean(self.cells.type) else self.cells
        for digit, words in _TRUTH.items() if self.is_text else ():
            cells = pc.if_else(pc.is_in(cells, value_set=pa.array(words)), digit, cells)
        numbers = self.numbers("0 or 1", cells)
        self.refuse(~np.isin(numbers, (0.0, 1.0)), "0 or 1")
        return numbers

    def probabilities(self) -> NDArray[np.float64]:
        """(n,) numbers in [0, 1]."""
        numbers = self.numbers("a probability")
        self.refuse((numbers < -_ROUNDING) | (numbers > 1 + _ROUNDING), "a probability from 0 to 1")
        return numbers

    def numbers(self, allowed: str, cells: Any = None) -> NDArray[np.float64]:
        """(n,) numbers as float64, of these cells or of those given; NaN and whatever is not a number is refused."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = self.cells if cells is None else cells
        kind = cells.type
        self.refuse(self.blank(), allowed)
        if self.is_text:
            cells = pc.utf8_trim_whitespace(cells)
            infinite = np.asarray(pc.match_substring_regex(cells, _INFINITE).to_numpy())
            self.refuse(~(infinite | np.asarray(pc.match_substring_regex(cells, _NUMBER).to_numpy())), allowed)
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise DataError(
                f"{self.table.path}: column '{self.name}' has the type {kind} — allowed: {allowed}, as a whole number, "
                "a float, or text"
            )
        numbers = np.asarray(pc.cast(cells, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
        if self.is_text:  # 1e400 is not infinity
            self.refuse(np.isinf(numbers) & ~infinite, "a number that a float64 can hold, at most 1.8e308")
        self.refuse(np.isnan(numbers), allowed)
        return numbers


def _labels(table: _Table, column: str, allowed: str) -> tuple[list[str], NDArray[Any]]:
    """Return the different texts of `set` or `role`, and (n,) which of them each row has."""
    import pyarrow as pa

    cells = _Cells(table, column)
    number = column == "set" and pa.types.is_integer(cells.cells.type)
    if not (cells.is_text or number or pa.types.is_null(cells.cells.type)):
        raise DataError(f"{table.path}: column '{column}' has the type {cells.cells.type} — allowed: text")
    words = cells.cells.cast(pa.string()).dictionary_encode().unify_dictionaries().combine_chunks()
    values = words.dictionary.to_pylist()
    empty = [code for code, value in enumerate(values) if not value.strip()]
    codes = np.asarray(words.indices.fill_null(-1))
    cells.refuse((codes < 0) | np.isin(codes, empty), allowed)
    return values, codes


def _set_scores(name: str, role: str, table: _Table, scores: NDArray[np.float64]) -> SetScores:
    images = _images(table)
    if role not in ID_ROLES:
        return SetScores(name, role, scores, images=images)
    columns = {column: _Cells(table, column) for column in table.columns if column not in _REQUIRED}
    cells = {column: column_cells for column, column_cells in columns.items() if not column_cells.blank().all()}
    probabilities = _probabilities(name, role, table, cells)
    classes = None if probabilities is None else probabilities.shape[1]
    labels = cells["label"].indices(classes) if "label" in cells else None
    predictions = cells["prediction"].indices() if "prediction" in cells else None
    correct = cells["correct"].truths() if "correct" in cells else None
    if labels is not None and predictions is not None:
        right = (labels == predictions).astype(np.float64)
        if correct is not None:
            cells["correct"].refuse(correct != right, "1 where label and prediction are equal, else 0")
        correct = right
    elif correct is None and labels is not None and probabilities is not None:
        correct = (labels == probabilities.argmax(axis=1)).astype(np.float64)
    return SetScores(name, role, scores, correct, labels, probabilities, predictions=predictions, images=images)


def _images(table: _Table) -> tuple[str, ...] | None:
    """Return (n,) the names of the images, or None if the set has none at all."""
    import pyarrow as pa

    if "image" not in table.columns or (cells := _Cells(table, "image")).blank().all():
        return None
    cells.refuse(cells.blank(), "a name in every row of a set, or in none")
    return tuple(cells.cells.cast(pa.string()).to_pylist())


def _probabilities(name: str, role: str, table: _Table, cells: dict[str, _Cells]) -> NDArray[np.float64] | None:
    """Return (n, c) class probabilities, or None if the set has none at all."""
    names = sorted((column for column in table.columns if column.startswith("p_")), key=lambda text: int(text[2:]))
    present = [cells[column] for column in names if column in cells]
    if not present:
        return None
    if len(present) < len(names):
        raise DataError(f"{table.path}: set '{name}' ({role}) has probabilities for some classes only — give all")
    rows = np.stack([column.probabilities() for column in present], axis=1)
    sums = rows.sum(axis=1)
    bad = np.abs(sums - 1.0) > _SUM
    if bad.any():
        first = int(bad.argmax())
        raise DataError(
            f"{table.where(first)}: p_0 … p_{rows.shape[1] - 1} have a sum of {sums[first]:.6g} — allowed: class "
            "probabilities, which sum to 1"
        )
    return rows


def _content(path: Path) -> bytes:
    """The bytes of a regular file: a pipe is not waited for."""
    if path.suffix not in _SUFFIXES:
        raise DataError(f"'{path}' is not a file of scores — allowed: {', '.join(_SUFFIXES)}")
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"file of scores '{path}' not found") from error
    except OSError as error:
        raise DataError(f"file of scores '{path}' cannot be opened — {error.strerror}") from error
    kind = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
    raise DataError(f"file of scores '{path}' is {kind} — allowed: a regular file")


def _no_rows(path: Path) -> DataError:
    return DataError(f"{path} has no rows — write one per scored image")


def _unreadable(path: Path, error: Exception) -> DataError:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return DataError(f"{path} cannot be read as {path.suffix[1:]} ({text}) — write the file again")


def _known(names: list[str], path: Path) -> list[str]:
    """Return the columns that have a meaning here, after checking that they are there, once, without a gap."""
    for name in _REQUIRED:
        if name not in names:
            listed = [one_line(other) for other in names]
            raise DataError(
                f"{path} has no column '{name}'{did_you_mean(name, listed)}, found: {', '.join(listed)} — needed: "
                f"{', '.join(_REQUIRED)}; optional: {', '.join(_OPTIONAL)}, p_0 … p_{{c-1}}"
            )
    known = [name for name in names if name in (*_REQUIRED, *_OPTIONAL) or _PROBABILITY.fullmatch(name)]
    for name in known:
        if known.count(name) > 1:
            raise DataError(f"{path} has the column '{name}' {known.count(name)} times — keep one column of each name")
    numbered = sorted((name.removeprefix("p_") for name in known if name.startswith("p_")), key=int)
    if numbered != [str(k) for k in range(len(numbered))]:
        raise DataError(
            f"{path}: the probability columns must be p_0 … p_{{c-1}} without a gap — found p_{', p_'.join(numbered)}"
        )
    return known


def _read_parquet(path: Path) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not `read_table`, which would take a folder called `set=x` for a column. Checksums are compared if it has any.
        with pq.ParquetFile(pa.BufferReader(_content(path)), page_checksum_verification=True) as file:
            known = _known(file.schema_arrow.names, path)
            table = file.read(columns=known)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise error if isinstance(error, DataError) else _unreadable(path, error) from error
    return _Table(path, {name: table.column(name) for name in known}, np.arange(table.num_rows))


def _read_csv(path: Path) -> _Table:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    content = _content(path)
    text = _checked_text(path, content)
    known = _known(_header(path, text), path)
    if next(islice(_records(text), 1, None), None) is None:
        raise _no_rows(path)
    names = pa.dictionary(pa.int32(), pa.string())
    types = {name: names if name in ("set", "role") else pa.string() for name in known}
    # Nothing is taken for a missing value: a set may be called NA.
    convert = arrow_csv.ConvertOptions(column_types=types, include_columns=known, strings_can_be_null=False)
    parse = arrow_csv.ParseOptions(newlines_in_values='"' in text)
    try:
        source, options = pa.BufferReader(content), arrow_csv.ReadOptions(block_size=_BLOCK)
        table = arrow_csv.read_csv(source, options, parse, convert).unify_dictionaries()
    except (pa.ArrowException, ValueError, MemoryError) as error:
        _check_lengths(path, text)
        raise _unreadable(path, error) from error
    columns = {name: table.column(name) for name in known}
    # Spreadsheets leave rows of nothing but commas.
    filled = np.zeros(table.num_rows, dtype=bool)
    for column in columns.values():
        filled |= np.asarray(pc.not_equal(column.cast(pa.string()), "").to_numpy())
    everything = _Table(path, columns, np.arange(table.num_rows))
    return everything if filled.all() else everything.take(np.flatnonzero(filled))


def _checked_text(path: Path, content: bytes) -> str:
    """The text of a CSV, whose quotes are closed: an open one swallows the rows up to the next one."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}, line {line}: {error.reason} — allowed: UTF-8 text") from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise DataError(f"{path}, line {line}: found a NUL byte — allowed: UTF-8 text with commas")
    if text.count('"') % 2:
        raise DataError(f"{path}: a quote is not closed (found {text.count(chr(34))}) — write the file again")
    return text


def _records(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each record starts, and its fields; slow, for headers and messages."""
    reader, line = csv.reader(io.StringIO(text, newline="")), 1
    for fields in reader:
        if fields:
            yield line, fields
        line = reader.line_num + 1


def _header(path: Path, text: str) -> list[str]:
    try:
        _, names = next(_records(text), (0, []))
    except csv.Error as error:
        raise _unreadable(path, error) from error
    if not names:
        raise DataError(f"{path} is empty — write a header and one row per scored image")
    other = next((mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]), None)
    if other is not None:
        raise DataError(f"{path}: columns are separated by {other!r} — allowed: commas, and points in decimals")
    return names


def _check_lengths(path: Path, text: str) -> None:
    """Name the first row that has more or fewer fields than the header."""
    try:
        records = _records(text)
        _, header = next(records)
        for line, fields in records:
            if len(fields) != len(header):
                raise DataError(
                    f"{path}, line {line}: found {len(fields)} fields — allowed: {len(header)}, as in the header"
                )
    except csv.Error as error:
        raise _unreadable(path, error) from error
