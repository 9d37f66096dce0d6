"""Cells of a file of scores as numbers: each is taken as written or refused with its place."""

from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError
from openbench.results.escape import one_line
from openbench.results.scores.file import ScoreTable

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
