"""Several methods on the same sets, a row each, in the order given: as a table to read, and as a DataFrame."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from openbench.core.record import ResultRecord
from openbench.results.records.settings import hyper_parameters
from openbench.results.tables.conventions import conventions
from openbench.results.tables.frames import frame, series_of
from openbench.results.tables.table import Cell, Column, Table
from openbench.results.tables.views import GROUPS, deviation_notes, estimate, names_of, tuned_on

if TYPE_CHECKING:
    from pandas import DataFrame, Series

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
