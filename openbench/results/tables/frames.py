"""Tables as pandas DataFrames: numbers are numbers, rates are fractions in [0, 1], and nothing is rounded."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openbench.core.record import ResultRecord
from openbench.results.tables.table import Cell, Column, Estimate, Table
from openbench.results.tables.views import MEMBER, SIDES, run_tables, tuned_on

if TYPE_CHECKING:
    from pandas import DataFrame, Series

SIDE = "side"
_STANDARD = "standard"
_ENDS = ("low", "high", "std")
_DTYPES = {"text": "str", "percent": "float64", "number": "float64", "count": "Int64"}
_MARKS = (" [interval]", " ↑", " ↓")
_FULL_SPECTRUM = ("FS ", "full_spectrum_")
# Titles that are words and not metric keys.
_NAMES = {
    "FPR@95": "fpr95",
    "hyper-parameters": "hyper_parameters",
    "α": "alpha",
    "λ": "threshold",
    "as defined": "expected",
}


def frame(record: ResultRecord, view: str = "overview") -> "DataFrame":
    """Return one view of a run; columns are metric keys, an uncertain one `x` has `x_low` and `x_high` beside it.

    `unable` is NaN. The column `side` is there where the view has a table for each ID side. `attrs` holds `conventions`
    (what the numbers depend on), `notes`, and `tuned`, the hyper-parameters that were chosen, with `tuned_on`.

    Args:
        record: the run.
        view: one of VIEWS.

    Raises:
        ConfigError: no such view.
    """
    import pandas as pd

    tables = run_tables(record, view)
    parts = [frame_of(table) for table in tables]
    sides = [_side(table, view) for table in tables]
    if any(side != _STANDARD for side in sides) and view != "overview":
        for part, side in zip(parts, sides, strict=True):
            part.insert(0, SIDE, side)
    if view == "overview":
        parts[0]["set"] = [name.removeprefix(MEMBER) for name in parts[0]["set"]]
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    notes = [note for table in tables for note in table.notes]
    found.attrs |= {"conventions": record.header, "notes": list(dict.fromkeys(notes)), **tuned(record)}
    return found


def tuned(record: ResultRecord) -> dict[str, Any]:
    """Return {`tuned`: the hyper-parameters that were chosen, `tuned_on`: on which data}; both empty if none were."""
    return {"tuned": dict(record.tuned), "tuned_on": tuned_on(record) if record.tuned else ""}


def frame_of(table: Table) -> "DataFrame":
    """Return a table as a DataFrame; an uncertain column has its ends beside it, a cell without a value is missing."""
    import pandas as pd

    columns: dict[str, Series] = {}
    for index, column in enumerate(table.columns):
        columns |= series_of(name_of(column.title), column, [row[index] for row in table.rows])
    return pd.DataFrame(columns)


def series_of(name: str, column: Column, cells: Sequence[Cell]) -> "Mapping[str, Series]":
    """Return a column by name, and those of its ends `low`, `high`, `std` that occur.

    Args:
        name: of the column; ends are called `name_low`, ….
        column: what kind of cells it has.
        cells: one per row.
    """
    import pandas as pd

    dtype = _DTYPES[column.kind]
    found = {name: pd.Series([_plain(cell, column) for cell in cells], dtype=dtype)}
    for end in _ENDS:
        values = [getattr(cell, end) if isinstance(cell, Estimate) else None for cell in cells]
        if any(value is not None for value in values):
            found[f"{name}_{end}"] = pd.Series(values, dtype=dtype)
    return found


def name_of(title: str) -> str:
    """Return the name of a column: a metric key as it is, a title in lower case with underscores."""
    for mark in _MARKS:
        title = title.replace(mark, "")
    prefix = ""
    if title.startswith(_FULL_SPECTRUM[0]):
        title, prefix = title.removeprefix(_FULL_SPECTRUM[0]), _FULL_SPECTRUM[1]
    if title in _NAMES:
        return prefix + _NAMES[title]
    if title == title.lower() and " " not in title:
        return prefix + title
    return prefix + title.lower().replace(" ", "_").replace("-", "_")


def _plain(cell: Cell, column: Column) -> Any:
    value = cell.value if isinstance(cell, Estimate) else cell
    if isinstance(value, str) and column.kind != "text":  # `unable`
        return None
    return value


def _side(table: Table, view: str) -> str:
    """The ID side that a run's table is about."""
    return next((side for side in SIDES.values() if side and f"{view} · {side} · " in table.title), _STANDARD)
