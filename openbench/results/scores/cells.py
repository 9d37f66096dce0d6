"""A file of scores as sets for the metrics: each cell is taken as written, or refused with its place."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.scores import SetScores
from openbench.errors import DataError, did_you_mean
from openbench.metrics.suite import ROLES
from openbench.results.escape import one_line
from openbench.results.scores.file import ScoreTable, read_table

_EXACT = 2**53  # whole numbers up to here are all floats
_ROUNDING = 1e-6  # of a probability in float32
_SUM = 0.01  # of a row of probabilities, which may have been written with few digits
_TRUTH = {"1": ("True", "true", "TRUE"), "0": ("False", "false", "FALSE")}
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_INFINITE = r"^[+-]?(?i:inf|infinity)$"


class Cells:
    """Some rows of one column.

    Args:
        table: the file.
        name: the column.
        positions: (k,) rows of the table; None for all.
    """

    def __init__(self, table: ScoreTable, name: str, positions: NDArray[np.int64] | None = None) -> None:
        import pyarrow as pa

        self.table, self.name, self.positions = table, name, positions
        cells = table.columns[name]
        if positions is not None:
            cells = cells.take(pa.array(positions))
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        if pa.types.is_large_string(cells.type) or cells.type == pa.string_view():
            cells = cells.cast(pa.string())
        self.cells = cells
        self.text = bool(pa.types.is_string(cells.type))

    def blank(self) -> NDArray[np.bool_]:
        """(k,) whether nothing stands there: null, or empty text."""
        import pyarrow.compute as pc

        missing = self.cells.is_null()
        if self.text:
            missing = pc.or_(missing, pc.fill_null(pc.equal(self.cells, ""), False))
        return np.asarray(missing.to_numpy(), dtype=bool)

    def refuse(self, bad: NDArray[Any], allowed: str) -> None:
        """Raise a DataError that names the first of the `bad` cells (k,); without any, do nothing."""
        if not bad.any():
            return
        first, count = int(bad.argmax()), int(bad.sum())
        value = self.cells[first].as_py()
        found = "null" if value is None else f"'{one_line(str(value))}'"
        scope = "file" if self.positions is None else "set"
        raise DataError(
            f"{self.table.where(first if self.positions is None else int(self.positions[first]))}: {self.name} — found "
            f"{found}{f' and {count - 1} more like it in this {scope}' if count > 1 else ''} — allowed: {allowed}"
        )

    def scores(self) -> NDArray[np.float64]:
        """(k,) numbers, ±inf among them, in the order of what was written.

        Text and decimals are rounded to the nearest float64: two that have the same one are a tie. From 2^53 on, where
        float64 no longer holds every whole number, two different ones with the same float64 are refused.
        """
        numbers = self._numbers("a number")
        self._check_order(numbers)
        return numbers

    def indices(self, classes: int | None = None) -> NDArray[np.int64]:
        """(k,) class indices: whole numbers ≥ 0, below `classes` if that is known."""
        allowed = "a class index ≥ 0" if classes is None else f"a class index from 0 to {classes - 1}"
        numbers = self._numbers(allowed)
        limit = _EXACT if classes is None else classes - 1
        self.refuse((numbers < 0) | (numbers != np.floor(numbers)) | (numbers > limit), allowed)
        return numbers.astype(np.int64)

    def truths(self) -> NDArray[np.float64]:
        """(k,) 0 or 1, also written as False or True."""
        import pyarrow as pa
        import pyarrow.compute as pc

        allowed = "0 or 1"
        if pa.types.is_boolean(self.cells.type):
            self.refuse(self.blank(), allowed)
            return np.asarray(self.cells.to_numpy(), dtype=np.float64)
        if not self.text:
            numbers = self._numbers(allowed)
        else:
            self.refuse(self.blank(), allowed)
            cells = self.cells
            for digit, words in _TRUTH.items():
                cells = pc.if_else(pc.is_in(cells, value_set=pa.array(words)), digit, cells)
            numbers = self._of_text(cells, allowed)
        self.refuse(~np.isin(numbers, (0.0, 1.0)), allowed)
        return numbers

    def probabilities(self) -> NDArray[np.float64]:
        """(k,) numbers in [0, 1]."""
        numbers = self._numbers("a probability")
        self.refuse((numbers < -_ROUNDING) | (numbers > 1 + _ROUNDING), "a probability from 0 to 1")
        return numbers

    def _numbers(self, allowed: str) -> NDArray[np.float64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = self.cells.type
        self.refuse(self.blank(), allowed)
        if self.text:
            return self._of_text(self.cells, allowed)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise DataError(
                f"{self.table.path}: column '{self.name}' has the type {kind} — allowed: {allowed}, as a whole number, "
                "a float, or text"
            )
        numbers = pc.cast(self.cells, pa.float64(), safe=False).to_numpy()
        self.refuse(np.isnan(numbers), allowed)
        return np.asarray(numbers, dtype=np.float64)

    def _of_text(self, cells: Any, allowed: str) -> NDArray[np.float64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            numbers = pc.cast(cells, pa.float64()).to_numpy()
        except pa.ArrowInvalid:
            cells = pc.utf8_trim_whitespace(cells)
            shaped = pc.or_(pc.match_substring_regex(cells, _NUMBER), pc.match_substring_regex(cells, _INFINITE))
            self.refuse(~np.asarray(shaped.to_numpy()), allowed)
            numbers = pc.cast(cells, pa.float64()).to_numpy()
        self.refuse(np.isnan(numbers), allowed)
        huge = np.flatnonzero(np.isinf(numbers))
        if huge.size:  # 1e400 is not infinity
            written = pc.match_substring_regex(cells.take(pa.array(huge)), _INFINITE).to_numpy()
            bad = np.zeros(numbers.size, dtype=bool)
            bad[huge[~np.asarray(written)]] = True
            self.refuse(bad, "a number that a float64 can hold, at most 1.8e308")
        return np.asarray(numbers, dtype=np.float64)

    def _check_order(self, numbers: NDArray[np.float64]) -> None:
        """Refuse numbers beyond 2^53 of which two become one float."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_floating(self.cells.type):
            return
        large = np.flatnonzero(np.isfinite(numbers) & (np.abs(numbers) >= _EXACT))
        if not large.size:
            return
        cells = self.cells.take(pa.array(large))
        if self.text:
            cells = pc.utf8_trim_whitespace(cells)
        exact = [Decimal(value) for value in cells.to_pylist()]
        seen: dict[float, Decimal] = {}
        for place, value, number in zip(large, exact, numbers[large].tolist(), strict=True):
            if seen.setdefault(number, value) != value:
                bad = np.zeros(numbers.size, dtype=bool)
                bad[place] = True
                self.refuse(bad, f"scores that float64 tells apart; {seen[number]} is the same — subtract an offset")


def check_sums(table: ScoreTable, positions: NDArray[np.int64], probabilities: NDArray[np.float64]) -> None:
    """Check that the rows (k, c) of class probabilities sum to one.

    Raises:
        DataError: a row does not.
    """
    sums = probabilities.sum(axis=1)
    bad = np.abs(sums - 1.0) > _SUM
    if bad.any():
        first = int(bad.argmax())
        raise DataError(
            f"{table.where(int(positions[first]))}: p_0 … p_{probabilities.shape[1] - 1} — found a sum of "
            f"{sums[first]:.6g}{f' and {int(bad.sum()) - 1} more like it in this set' if bad.sum() > 1 else ''} — "
            "allowed: class probabilities, which sum to 1 — write them with more digits, or leave the columns out"
        )


ID_ROLES = ("id_test", "id_val", "csid")


def read_sets(path: Path) -> list[SetScores]:
    """Return the sets of a `.csv` or `.parquet` file, in the order in which they first appear.

    Columns: `score` (larger = more OOD), `set`, `role`; optionally, for ID-side rows, `correct` (0/1), `label` (class
    index), `prediction` (class index) and `p_0` … `p_{c-1}` (class probabilities). Correctness is `correct`, else
    `prediction == label`, else the largest probability's class. Further columns are not read.

    Scores become float64; decimals that share one are ties, numbers beyond 2^53 that do are an error. The same row
    twice is two images.

    Args:
        path: the file.

    Raises:
        DataError: no such file, another format, a column that is missing, or a value that cannot be used; with the
            line (csv) or row (parquet) where it stands.
    """
    table = read_table(path)
    names, name_codes = _labels(table, "set")
    roles, role_codes = _labels(table, "role")
    for role in roles:
        if role not in ROLES:
            first = int(np.argmax(role_codes == roles.index(role)))
            raise DataError(
                f"{table.where(first)}: role '{one_line(role)}' not found{did_you_mean(role, ROLES)} — allowed: "
                f"{', '.join(ROLES)}"
            )
    for name in names:
        if not name.isprintable():
            first = int(np.argmax(name_codes == names.index(name)))
            raise DataError(f"{table.where(first)}: set — found '{one_line(name)}' — allowed: a name on one line")
    scores = Cells(table, "score").scores()
    groups = _groups(role_codes.astype(np.int64) * len(names) + name_codes)
    return [
        _one_set(names[name_codes[rows[0]]], roles[role_codes[rows[0]]], table, rows, scores[rows]) for rows in groups
    ]


def _labels(table: ScoreTable, column: str) -> tuple[list[str], NDArray[Any]]:
    """Return the different texts of `set` or `role`, and (n,) which of them each row has."""
    import pyarrow as pa

    found = table.columns[column]
    kind = found.type.value_type if pa.types.is_dictionary(found.type) else found.type
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    if not (texts or pa.types.is_null(kind) or (column == "set" and pa.types.is_integer(kind))):
        raise DataError(f"{table.path}: column '{column}' has the type {kind} — allowed: text")
    if not pa.types.is_dictionary(found.type):
        found = found.cast(pa.string()).dictionary_encode()
    found = found.unify_dictionaries().combine_chunks()
    found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    values = found.dictionary.to_pylist()
    missing = np.asarray(found.indices.is_null())
    codes = np.asarray(found.indices.fill_null(0))
    empty = [k for k, value in enumerate(values) if value is None or not str(value).strip()]
    bad = missing | np.isin(codes, empty)
    Cells(table, column).refuse(bad, "a name in every row" if column == "set" else ", ".join(ROLES))
    used = np.unique(codes)  # a dictionary may hold texts that no row has
    renumbered = np.zeros(len(values), dtype=np.int64)
    renumbered[used] = np.arange(used.size)
    return [str(values[k]) for k in used], renumbered[codes]


def _groups(codes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rows of each code, ascending, the codes in the order of their first row."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    return sorted(np.split(order, starts[1:]), key=lambda rows: int(rows[0]))


def _one_set(
    name: str, role: str, table: ScoreTable, rows: NDArray[np.int64], scores: NDArray[np.float64]
) -> SetScores:
    if role not in ID_ROLES:
        return SetScores(name, role, scores)
    found = {column: Cells(table, column, rows) for column in table.columns if column not in ("score", "set", "role")}
    given = {column: cells for column, cells in found.items() if not cells.blank().all()}
    probabilities = _probabilities(name, role, table, given)
    classes = None if probabilities is None else probabilities.shape[1]
    labels = given["label"].indices(classes) if "label" in given else None
    predictions = given["prediction"].indices() if "prediction" in given else None
    correct = given["correct"].truths() if "correct" in given else None
    if correct is None and labels is not None:
        if predictions is not None:
            correct = (labels == predictions).astype(np.float64)
        elif probabilities is not None:
            correct = (labels == probabilities.argmax(axis=1)).astype(np.float64)
    elif correct is not None and labels is not None and predictions is not None:
        given["correct"].refuse(correct != (labels == predictions), "1 where label and prediction are equal, else 0")
    return SetScores(name, role, scores, correct, labels, probabilities)


def _probabilities(name: str, role: str, table: ScoreTable, given: dict[str, Cells]) -> NDArray[np.float64] | None:
    """Return (n, c) class probabilities, or None if the set has none at all."""
    present = [given[column] for column in table.classes if column in given]
    if len(present) not in (0, len(table.classes)):
        raise DataError(f"{table.path}: set '{name}' ({role}) has probabilities for some classes only — give all")
    if not present:
        return None
    rows = np.stack([cells.probabilities() for cells in present], axis=1)
    positions = present[0].positions
    check_sums(table, np.arange(len(rows)) if positions is None else positions, rows)
    return rows
