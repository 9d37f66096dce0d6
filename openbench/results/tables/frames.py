"""Tables of many methods, and tables as pandas DataFrames: rates are fractions in [0, 1], and nothing is rounded."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.escape import csv_cell
from openbench.results.records.settings import hyper_parameters
from openbench.results.tables import views
from openbench.results.tables.render import Cell, Column, Table, expanded

if TYPE_CHECKING:
    from pandas import DataFrame


SIDE = "side"
_STANDARD = "standard"
_DTYPES = {"text": "str", "percent": "float64", "number": "float64", "count": "Int64"}
# Titles that are words and not metric keys.
_NAMES = {"FPR@95": "fpr95", "α": "alpha", "λ": "threshold", "as defined": "expected"}


def frame(record: ResultRecord, view: str = "overview") -> "DataFrame":
    """Return one view of a run; columns are metric keys, an uncertain one `x` is followed by `x_low` and `x_high`.

    `unable` is NaN. The column `side` is there where the view has a table for each ID side. `attrs` holds `conventions`
    (what the numbers depend on), `notes`, and `tuned`, the hyper-parameters that were chosen, with `tuned_on`.

    Args:
        record: the run.
        view: one of VIEWS.

    Raises:
        ConfigError: no such view.
    """
    import pandas as pd

    tables = views.run_tables(record, view)
    parts = [frame_of(table) for table in tables]
    sides = [_side(table, view) for table in tables]
    if view == "overview":
        parts[0]["set"] = [name.removeprefix(views.MEMBER) for name in parts[0]["set"]]
    elif set(sides) - {_STANDARD}:
        for part, side in zip(parts, sides, strict=True):
            part.insert(0, SIDE, side)
    joined = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    notes = [note for table in tables for note in table.notes]
    joined.attrs |= {"conventions": record.header, "notes": list(dict.fromkeys(notes))}
    joined.attrs |= {"tuned": dict(record.tuned), "tuned_on": views.tuned_on(record) if record.tuned else ""}
    return joined


def frame_of(table: Table) -> "DataFrame":
    """Return a table as a DataFrame; an uncertain column is followed by its ends, a cell without a value is missing."""
    import pandas as pd

    columns = {}
    for column, end, values in expanded(table):
        if column.kind != "text":
            values = [None if isinstance(value, str) else value for value in values]  # `unable`
        name = "_".join(filter(None, (name_of(column.key), end)))
        columns[name] = pd.Series(values, dtype=_DTYPES[column.kind])
    return pd.DataFrame(columns)


def write_frame(table: "DataFrame", path: Path, columns: Mapping[str, str]) -> None:
    """Write a CSV whose texts are escaped, from which `read_frame` has the same table again.

    Args:
        table: with these columns.
        path: the file.
        columns: name → dtype.
    """
    texts = {name: table[name].map(csv_cell) for name, dtype in columns.items() if dtype == "str"}
    table.assign(**texts).to_csv(path, index=False, lineterminator="\n")


def read_frame(path: Path, columns: Mapping[str, str]) -> "DataFrame":
    """Return the table in a CSV that `write_frame` wrote.

    Raises:
        RecordError: columns are missing or unknown, or a number cannot be read.
    """
    import pandas as pd

    table = pd.read_csv(path, dtype="str", keep_default_na=False)
    if list(table) != list(columns):
        raise RecordError(f"'{path}': found the columns {list(table)} — expected {', '.join(columns)}")
    try:
        return table.astype(dict(columns))
    except ValueError as error:
        raise RecordError(f"'{path}': {error} — a number is expected") from error


def name_of(title: str) -> str:
    """Return the name of a column: a metric key as it is, a title in lower case with underscores."""
    title = re.sub(r" \[interval\]| [↑↓]", "", title)
    plain = title.removeprefix("FS ")
    is_key = plain == plain.lower() and not re.search(" |hyper-", plain)
    name = _NAMES.get(plain) or (plain if is_key else re.sub("[ -]", "_", plain.lower()))
    return name if plain == title else f"full_spectrum_{name}"


def _side(table: Table, view: str) -> str:
    """The ID side that a run's table is about."""
    return next((side for side in views.SIDES.values() if side and f"{view} · {side} · " in table.title), _STANDARD)


_KEYS = {"auroc": "AUROC ↑", "fpr95": "FPR@95 ↓"}


def methods_table(records: Mapping[str, ResultRecord], title: str) -> Table:
    """Return near and far AUROC with intervals, FPR@95, the AUROC of every set, ID accuracy, and what was tuned.

    Args:
        records: by what the methods are called.
        title: what they have in common.
    """
    names = _names(records.values())
    groups = [name for name in views.GROUPS if name in names]
    numbers = [(name, key) for key in _KEYS for name in groups]
    numbers += [(name, "auroc") for name in names if name not in groups]
    columns, cells, of = [Column("method")], [list[Cell](records)], list(records.values())
    for name, key in numbers:
        values = [views.estimate(record.metrics.get(name, {}), key) for record in of]
        bounded = name in groups and key == "auroc"
        interval = " [interval]" * (bounded and any(getattr(cell, "low", None) is not None for cell in values))
        columns.append(Column(f"{name} {_KEYS[key]}{interval}", "percent"))
        cells.append([cell if bounded else getattr(cell, "value", cell) for cell in values])
    columns += Column.of(("ID accuracy ↑", "percent"), "tuned")
    cells += [list(map(_accuracy, of)), [f"{_chosen(r)} on {views.tuned_on(r)}" if r.tuned else "–" for r in of]]
    headers = {record.header for record in of}
    header = views.conventions(headers.pop(), ["auroc", "fpr95"], ["auroc"]) if len(headers) == 1 else ""
    rows = tuple(zip(*cells, strict=True))
    return Table(title, tuple(columns), rows, header, tuple(_deviations(records.values())))


def methods_frame(records: Mapping[str, ResultRecord], view: str = "overview") -> "DataFrame":
    """Return a row per method; of another view than the overview, the rows of all methods in turn.

    The overview has a column for each group and set and metric: `near_auroc`, `near_auroc_low`, `near_auroc_high`,
    `near_fpr95`, …, then `id_accuracy`, `tuned` (as text; empty if nothing was) and `tuned_on`. `attrs["notes"]` says
    how the images differ from the benchmark's.

    Args:
        records: by what the methods are called.
        view: one of VIEWS.

    Raises:
        ConfigError: no such view.
    """
    import pandas as pd

    if view != "overview":
        parts = {method: frame(record, view) for method, record in records.items()}
        notes = {note: None for part in parts.values() for note in part.attrs["notes"]}
        for method, part in parts.items():
            part.insert(0, "method", method)
            part.attrs = {}
        filled = [part for part in parts.values() if len(part)]
        joined = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()
        joined.attrs["notes"] = list(notes)
        return joined
    of = list(records.values())
    numbers = [(name, key) for name in _names(of) for key in _KEYS]
    columns = Column.of(*((f"{name}_{key}", "percent") for name, key in numbers), ("id_accuracy", "percent"))
    rows = []
    for record in of:
        values = (views.estimate(record.metrics.get(name, {}), key) for name, key in numbers)
        rows.append((*values, _accuracy(record), _chosen(record), views.tuned_on(record) if record.tuned else ""))
    joined = frame_of(Table("", (*columns, *Column.of("tuned", "tuned_on")), tuple(rows)))
    joined = joined.set_axis(pd.Index(list(records), name="method", dtype="str"), axis=0)
    joined.attrs["notes"] = _deviations(of)
    return joined


def _names(records: Iterable[ResultRecord]) -> list[str]:
    """Groups and sets of all records, in the order of tables."""
    names = list(dict.fromkeys(name for record in records for name in views.names_of(record)))
    return [name for name in views.GROUPS if name in names] + [name for name in names if name not in views.GROUPS]


def _deviations(records: Iterable[ResultRecord]) -> list[str]:
    """What the records say of their images, each once."""
    return list(dict.fromkeys(note for record in records for note in views.deviation_notes(record)))


def _accuracy(record: ResultRecord) -> Cell:
    return record.metrics.get("id", {}).get("accuracy")


def _chosen(record: ResultRecord) -> str:
    return hyper_parameters(record.tuned)
