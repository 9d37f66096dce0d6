"""Tables of many methods, and tables as pandas DataFrames: rates are fractions in [0, 1], and nothing is rounded."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openbench.core.record import ResultRecord
from openbench.results.tables.render import Cell, Column, Estimate, Table
from openbench.results.tables.views import MEMBER, SIDES, run_tables, tuned_on

if TYPE_CHECKING:
    from pandas import DataFrame, Series

from collections.abc import Iterable
from typing import TYPE_CHECKING

from openbench.results.records.settings import hyper_parameters
from openbench.results.tables.views import GROUPS, conventions, deviation_notes, estimate, names_of

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


_KEYS = {"auroc": "AUROC ↑", "fpr95": "FPR@95 ↓"}
_NUMBER = Column("", "percent")


def methods_table(records: Mapping[str, ResultRecord], title: str) -> Table:
    """Return near and far AUROC with intervals, FPR@95, the AUROC of every set, ID accuracy, and what was tuned.

    Args:
        records: by what the methods are called.
        title: what they have in common.
    """
    names = _names(records.values())
    groups = [name for name in GROUPS if name in names]
    shown = [(name, key) for key in _KEYS for name in groups]
    shown += [(name, "auroc") for name in names if name not in groups]
    columns = [Column("method")]
    for name, key in shown:
        known = any(f"{key}_low" in record.metrics.get(name, {}) for record in records.values())
        interval = " [interval]" * (name in groups and key == "auroc" and known)
        columns.append(Column(f"{name} {_KEYS[key]}{interval}", "percent"))
    columns += [Column("ID accuracy ↑", "percent"), Column("tuned")]
    rows = []
    for method, record in records.items():
        cells: list[Cell] = [method]
        for name, key in shown:
            cell = estimate(record.metrics.get(name, {}), key)
            cells.append(cell if name in groups and key == "auroc" else getattr(cell, "value", cell))
        rows.append((*cells, _accuracy(record), _tuned(record)))
    headers = {r.header for r in records.values()}
    header = conventions(headers.pop(), ["auroc", "fpr95"], ["auroc"]) if len(headers) == 1 else ""
    return Table(title, tuple(columns), tuple(rows), header, tuple(_deviations(records.values())))


def methods_frame(records: Mapping[str, ResultRecord], view: str = "overview") -> "DataFrame":
    """Return a row per method, or for another view than the overview the rows of all methods below one another.

    The overview has a column for each group and set and metric: `near_auroc`, `near_auroc_low`, `near_auroc_high`,
    `near_fpr95`, …, then `id_accuracy`, `tuned` (as text; empty if nothing was) and `tuned_on`. `attrs["notes"]` says
    how the images are not those of the benchmark.

    Args:
        records: by what the methods are called.
        view: one of VIEWS.

    Raises:
        ConfigError: no such view.
    """
    import pandas as pd

    if view != "overview":
        parts = {method: frame(record, view) for method, record in records.items()}
        for method, part in parts.items():
            part.insert(0, "method", method)
        notes = {note: None for part in parts.values() for note in part.attrs["notes"]}
        kept = [part for part in parts.values() if len(part)]
        for part in kept:
            part.attrs = {}
        found = pd.concat(kept, ignore_index=True) if kept else pd.DataFrame()
        found.attrs["notes"] = list(notes)
        return found
    columns: dict[str, Series] = {}
    for name in _names(records.values()):
        for key in _KEYS:
            cells = [estimate(record.metrics.get(name, {}), key) for record in records.values()]
            columns |= series_of(f"{name}_{key}", _NUMBER, cells)
    columns |= series_of("id_accuracy", _NUMBER, [_accuracy(record) for record in records.values()])
    columns["tuned"] = pd.Series([hyper_parameters(record.tuned) for record in records.values()], dtype="str")
    on = [tuned_on(record) if record.tuned else "" for record in records.values()]
    columns["tuned_on"] = pd.Series(on, dtype="str")
    found = pd.DataFrame(columns).set_axis(pd.Index(list(records), name="method", dtype="str"), axis=0)
    found.attrs["notes"] = _deviations(records.values())
    return found


def _names(records: Iterable[ResultRecord]) -> list[str]:
    """Groups and sets of all records, in the order of tables."""
    found = list(dict.fromkeys(name for record in records for name in names_of(record)))
    return [name for name in GROUPS if name in found] + [name for name in found if name not in GROUPS]


def _deviations(records: Iterable[ResultRecord]) -> list[str]:
    """What the records say of their images, each once."""
    return list(dict.fromkeys(note for record in records for note in deviation_notes(record)))


def _accuracy(record: ResultRecord) -> Cell:
    return record.metrics.get("id", {}).get("accuracy")


def _tuned(record: ResultRecord) -> str:
    return f"{hyper_parameters(record.tuned)} on {tuned_on(record)}" if record.tuned else "–"
