"""Files of scores that others made, read by pyarrow; a value that cannot be used is refused with its place."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.scores import SetScores
from openbench.errors import DataError, did_you_mean
from openbench.metrics.suite import ROLES
from openbench.results.escape import one_line

if TYPE_CHECKING:
    import pyarrow as pa

ID_ROLES = ("id_test", "id_val", "csid")
_TEXTS, _NUMBERS = ("set", "role", "image"), ("score", "label", "prediction")
_REQUIRED, _OPTIONAL = ("score", "set", "role"), ("correct", "label", "prediction", "image")
_PROBABILITY = re.compile(r"p_[0-9]+")
_PLACE = " place"  # column of each row's number in the file, from 0
_MOST = 2**53  # whole numbers up to here are floats
_ROUNDING = 1e-6  # of a probability in float32
_SUM = 0.01  # of a row of probabilities, which may have been written with few digits
_TRUE, _FALSE = ("1", "1.0", "true", "True", "TRUE"), ("0", "0.0", "false", "False", "FALSE")


def read_sets(path: Path) -> list[SetScores]:
    """Return the sets of a `.csv` or `.parquet` file, in the order in which they first appear.

    Columns: `score` (larger = more OOD), `set`, `role`; optionally, for ID-side rows, `correct` (0/1), `label` (class
    index), `prediction` (class index) and `p_0` … `p_{c-1}` (class probabilities); for any row `image`, its name.
    Correctness is `correct`, else `prediction == label`, else the largest probability's class. Further columns are not
    read.

    Scores become float64; those that share one are ties. The same row twice is two images. CSV is UTF-8 with commas,
    quotes doubled within quotes.

    Args:
        path: the file.

    Raises:
        DataError: no such file, another format, a column that is missing, or a value that cannot be used; with the
            line (csv, blank ones not counted) or row (parquet) where it stands.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    readers = {".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(f"'{path}' is not a file of scores — allowed: {', '.join(readers)}")
    if not os.path.isfile(path):
        raise DataError(f"file of scores '{path}' not found")
    try:
        table = readers[path.suffix](path)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} cannot be read as {path.suffix[1:]} ({reason}) — write the file again") from error
    if not table.num_rows:
        raise DataError(f"{path} has no rows — write one per scored image")
    roles = table.group_by(["role", "set"], use_threads=False).aggregate([])
    sets = []
    for role, name in zip(*(roles[key].to_pylist() for key in ("role", "set")), strict=True):
        of_set = pc.and_(pc.equal(table["role"], role), pc.equal(table["set"], name))
        sets.append(_set_scores(name, role, _Rows(path, table.filter(of_set))))
    return sets


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a set.

    Args:
        path: the file.
        table: the columns that have a meaning here, nulls where nothing stands, and `_PLACE`.
    """

    path: Path
    table: "pa.Table"

    def has(self, name: str) -> bool:
        """Whether the set has any value in a column."""
        return name in self.table.column_names and self.table[name].null_count < self.table.num_rows

    def refuse(self, name: str, bad: NDArray[Any], allowed: str) -> None:
        """Raise a DataError that names the first of the `bad` cells (n,) of a column; without any, do nothing."""
        if not bad.any():
            return
        first, count = int(bad.argmax()), int(bad.sum())
        value = self.table[name][first].as_py()
        written = "empty" if value in (None, "") else f"'{one_line(f'{value:g}' if name not in _TEXTS else value)}'"
        more = f" and {count - 1} more like it" if count > 1 else ""
        raise DataError(f"{self.where(first)}: {name} is {written}{more} — allowed: {allowed}")

    def where(self, row: int) -> str:
        """Return the file and the place of a row, in a text file as an editor counts."""
        place = self.table[_PLACE][row].as_py()
        return f"{self.path}, line {place + 2}" if self.path.suffix == ".csv" else f"{self.path}, row {place}"

    def numbers(
        self, name: str, allowed: str, low: float = -np.inf, high: float = np.inf, whole: bool = False
    ) -> NDArray[np.float64]:
        """(n,) the values of a column, each within bounds and none of them missing."""
        numbers = np.asarray(self.table[name].to_numpy(), np.float64)  # null is NaN
        fits = (numbers >= low) & (numbers <= high)
        self.refuse(name, ~fits | (whole & (numbers != np.floor(numbers))), allowed)
        return numbers

    def indices(self, name: str, classes: int | None = None) -> NDArray[np.int64]:
        """(n,) class indices, below `classes` if that is known."""
        allowed = "a class index ≥ 0" if classes is None else f"a class index from 0 to {classes - 1}"
        return self.numbers(name, allowed, 0, _MOST if classes is None else classes - 1, whole=True).astype(np.int64)


def _set_scores(name: str, role: str, rows: _Rows) -> SetScores:
    every = np.ones(rows.table.num_rows, bool)
    rows.refuse("set", every & (not name.strip()), "a name in every row")
    rows.refuse("set", every & (not name.isprintable()), "a name on one line")
    rows.refuse("role", every & (role not in ROLES), f"one of {', '.join(ROLES)}{did_you_mean(role, ROLES)}")
    scores, images = rows.numbers("score", "a number"), None
    if rows.has("image"):
        images = tuple(rows.table["image"].to_pylist())
        rows.refuse("image", np.array([not image for image in images]), "a name in every row of a set, or in none")
    if role not in ID_ROLES:
        return SetScores(name, role, scores, images=images)
    probabilities = _probabilities(name, role, rows)
    classes = None if probabilities is None else probabilities.shape[1]
    labels = rows.indices("label", classes) if rows.has("label") else None
    predictions = rows.indices("prediction") if rows.has("prediction") else None
    correct = rows.numbers("correct", "0 or 1", 0, 1, whole=True) if rows.has("correct") else None
    if labels is not None and predictions is not None:
        right = (labels == predictions).astype(np.float64)
        if correct is not None:
            rows.refuse("correct", correct != right, "1 where label and prediction are equal, else 0")
        correct = right
    elif correct is None and labels is not None and probabilities is not None:
        correct = (labels == probabilities.argmax(axis=1)).astype(np.float64)
    return SetScores(name, role, scores, correct, labels, probabilities, predictions=predictions, images=images)


def _probabilities(name: str, role: str, rows: _Rows) -> NDArray[np.float64] | None:
    """Return (n, c) class probabilities, or None if the set has none at all."""
    names = [f"p_{k}" for k in range(sum(map(_is_probability, rows.table.column_names)))]
    present = [rows.has(column) for column in names]
    if not any(present):
        return None
    if not all(present):
        raise DataError(f"{rows.path}: set '{name}' ({role}) has probabilities for some classes only — give all")
    allowed, ends = "a probability from 0 to 1", (-_ROUNDING, 1 + _ROUNDING)
    probabilities = np.stack([rows.numbers(column, allowed, *ends) for column in names], axis=1)
    sums = probabilities.sum(axis=1)
    bad = np.abs(sums - 1.0) > _SUM
    if bad.any():
        first = int(bad.argmax())
        raise DataError(
            f"{rows.where(first)}: {names[0]} … {names[-1]} have a sum of {sums[first]:.6g} — allowed: class "
            "probabilities, which sum to 1"
        )
    return probabilities


def _is_probability(name: str) -> bool:
    return _PROBABILITY.fullmatch(name) is not None


def _known(names: list[str], path: Path) -> Iterator[tuple[str, "pa.DataType"]]:
    """Yield the columns that have a meaning here with their types, after checking that they are there, once."""
    import pyarrow as pa

    for name in _REQUIRED:
        if name not in names:
            listed = [one_line(other) for other in names]
            raise DataError(
                f"{path} has no column '{name}'{did_you_mean(name, listed)}, found: {', '.join(listed)} — needed: "
                f"{', '.join(_REQUIRED)}; optional: {', '.join(_OPTIONAL)}, p_0 … p_{{c-1}}"
            )
    classes = [name for name in names if _is_probability(name)]
    if {*classes} != {f"p_{k}" for k in range(len(classes))}:
        raise DataError(
            f"{path}: the probability columns must be p_0 … p_{{c-1}} without a gap — found {', '.join(classes)}"
        )
    for name in (*_REQUIRED, *_OPTIONAL, *classes):
        if names.count(name) > 1:
            raise DataError(f"{path} has the column '{name}' {names.count(name)} times — keep one column of each name")
        if name in names:
            yield name, pa.string() if name in _TEXTS else pa.float64()


def _typed(table: "pa.Table", path: Path) -> "pa.Table":
    """The columns that have a meaning here; whole numbers that no float64 holds are an error."""
    import pyarrow as pa

    columns = {name: table[name].cast(kind) for name, kind in _known(table.column_names, path)}
    columns |= {name: columns[name].fill_null("") for name in ("set", "role")}
    return pa.table({**columns, _PLACE: pa.array(np.arange(table.num_rows))})


def _parquet(path: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    # Not `read_table`, which would take a folder called `set=x` for a column. Checksums are compared if it has any.
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        table = file.read(columns=[name for name in names if name in (*_REQUIRED, *_OPTIONAL) or _is_probability(name)])
    table.validate(full=True)
    return _typed(table, path)


def _csv(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    content = path.read_bytes()
    if content.count(b'"') % 2:  # an open quote swallows the rows up to the next one
        raise DataError(f"{path}: a quote is not closed — write the file again")
    types = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_NUMBERS, pa.float64()) | {"correct": pa.bool_()}
    # Nothing but an empty cell is taken for a missing value: a set may be called NA.
    convert = csv.ConvertOptions(column_types=types, null_values=[""], true_values=_TRUE, false_values=_FALSE)
    parse = csv.ParseOptions(newlines_in_values=b'"' in content)
    options = csv.ReadOptions(use_threads=False)  # so that errors name the row
    table = _typed(csv.read_csv(pa.BufferReader(content), options, parse, convert), path)
    # Spreadsheets leave rows of nothing but commas.
    texts = pc.binary_join_element_wise(table["set"], table["role"], "")
    return table.filter(pc.or_(pc.not_equal(texts, ""), table["score"].is_valid()))
