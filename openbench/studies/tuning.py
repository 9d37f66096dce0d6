"""The layout `tuning`: what hyper-parameters chosen in several ways are worth, as tables and a picture.

A column is a way of choosing (`tune=…`), and one of them the oracle, whose trials have the AUROC of every setting on
every OOD set: from these come the best setting of each set and what is lost by the choice for another one.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kendalltau

from openbench.core.record import ResultRecord
from openbench.results import escape
from openbench.results.plots import COLOURS, finish, panels, saved
from openbench.results.tables.render import Cell as TableCell, Column, Table
from openbench.results.tables.views import GROUPS, members_of
from openbench.studies.cells import Grid, without
from openbench.studies.study import Study

_MARKERS = "osD^v"
_ROW, _TOP = 0.22, 1.1  # inches
_STEP = 0.15  # of a row between the points of two ways
_Rows = list[tuple[TableCell, ...]]


class Tuning:
    """The methods of a study and how well each way of choosing serves them.

    Frames have a row for each method, with means over its seeds; NaN stands for what has no record.

    Args:
        study: with the layout `tuning`; its first column keeps the defaults, its last one is the oracle.
        grid: the cells, row by row.
        records: of the runs in the cells.
    """

    def __init__(self, study: Study, grid: Grid, records: Sequence[ResultRecord]) -> None:
        by_id = {record.run_id: record for record in records}
        self._title, self._notes = study.title, (*without(grid), *study.about)
        self._names, self._ways = [line[0].row.name for line in grid], [column.name for column in study.columns]
        members = members_of(records[0]) if records else {}
        self._sets = sets = [name for group in GROUPS for name in members.get(group, ())]
        aurocs, best = list[list[float]](), list[float]()
        self._cross = list[NDArray[np.float64]]()  # (A, B) AUROC on set B of the setting that is best on set A
        for line in grid:
            found = [[by_id[run.run_id] for run in cell.records.values()] for cell in line]
            tried = [np.array([[t["sets"][s] for s in sets] for t in r.trials if "sets" in t]) for r in found[-1]]
            aurocs.append([_auroc(of, key) for of in found for key in (*sets, *GROUPS)])
            best.append(fmean(_auroc(found[-1], key) for key in sets) if sets else np.nan)
            if tried and all(map(len, tried)):
                self._cross.append(np.apply_along_axis(fmean, 0, [of[of.argmax(axis=0)] for of in tried]))
                best[-1] = self._cross[-1].diagonal().mean()
        scores = np.array(aurocs).reshape(len(grid), len(self._ways), -1)
        self._of_groups = scores[:, :, len(sets) :]
        means = scores[:, :, : len(sets)].sum(axis=2) / max(len(sets), 1) + 0 * np.array(best)[:, None]
        self._mean = pd.DataFrame(means, columns=self._ways)
        # Rounded off is what processors differ by; adding 0 makes 0 of −0.
        self._regret = (-self._mean).add(best, axis=0).round(6) + 0.0
        self._gain = self._mean.iloc[:, 1:].sub(self._mean.iloc[:, 0], axis=0).round(6) + 0.0
        self._complete = self._mean.notna().all(axis=1)

    def tables(self) -> list[Table]:
        """AUROCs, regrets, orders of methods, and choices for one set tested on another."""
        columns = [Column(f"{way} ↑", "percent", group=group) for group in GROUPS for way in self._ways]
        rows = _rows(self._names, self._of_groups.transpose(0, 2, 1).reshape(len(self._names), -1))
        aurocs = Table(f"{self._title}: AUROC", (Column("method"), *columns), tuple(rows), notes=self._notes)
        return [aurocs, self._regrets(), self._orders(), self._cross_tuned()]

    def _regrets(self) -> Table:
        rows, complete = _rows(self._names, np.hstack([self._regret, self._gain])), self._complete.sum()
        if complete:
            means = np.apply_along_axis(fmean, 0, self._regret[self._complete])
            rows += _rows([f"mean of {complete}"], np.hstack([means, means[0] - means[1:]])[None])
        columns = [Column(f"{way} ↓", "percent", group="regret") for way in self._ways]
        columns += [Column(f"{way} ↑", "percent", group="gain") for way in self._ways[1:]]
        notes = (
            "regret: AUROC of the best setting of each OOD set less that of the chosen one, mean over the sets; below "
            "zero where defaults outside of the space are better than all settings in it",
            f"gain: mean AUROC over the sets less that of {self._ways[0]}; last row: methods that have every column",
        )
        return Table(f"{self._title}: regret", (Column("method"), *columns), tuple(rows), notes=notes)

    def _orders(self) -> Table:
        places, rows, first = self._mean[self._complete].rank(ascending=False), _Rows(), self._ways[0]
        names = np.array(self._names)[self._complete]
        for way in self._ways if len(places) > 1 else ():
            moved, tau = (places[way] - places[first]).abs(), float(kendalltau(places[first], places[way]).statistic)
            rows.append((way, tau, moved.mean(), moved.max(), str(names[places[way].argmin()])))
        titles = (f"τ with {first}", "places moved, mean", "places moved, most")
        columns = (Column("chosen by"), *(Column(title, "number") for title in titles), Column("first"))
        notes = (f"order of {len(places)} methods by mean AUROC over the OOD sets; τ: Kendall's",)
        return Table(f"{self._title}: order of methods", columns, tuple(rows), notes=notes)

    def _cross_tuned(self) -> Table:
        sets, lost = self._sets if self._cross else [], [cross.diagonal() - cross for cross in self._cross]
        columns = (Column("chosen on"), *(Column(f"{b} ↓", "percent") for b in sets))
        notes = (f"mean regret of {len(lost)} methods on a set where the setting is the best one of another set",)
        rows = tuple(_rows(sets, np.apply_along_axis(fmean, 0, lost))) if lost else ()
        return Table(f"{self._title}: chosen on one set, tested on another", columns, rows, notes=notes)

    def picture(self) -> bytes:
        """Return a PNG: each method's gain over its defaults by every way of choosing."""
        known = self._mean[self._ways[0]].notna()
        gain, names = self._gain[known][::-1], np.array(self._names)[known][::-1]
        figure, (axes,) = panels(1, (6.4, _TOP + _ROW * len(gain)))
        look: dict[str, Any] = {"linestyle": "", "markersize": 4.5}
        for at, (way, marker) in enumerate(zip(self._ways[1:], _MARKERS, strict=False)):
            y, look["color"] = np.arange(len(gain)) + _STEP * (1.5 - at), COLOURS[at % len(COLOURS)]
            axes.plot(100 * gain[way], y, marker=marker, label=escape.plot(way), **look)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(gain)), [escape.plot(name) for name in names], fontsize=7)
        axes.set_xlabel("gain in mean AUROC over the defaults, percentage points")
        axes.set_title(escape.plot(self._title), fontsize=9)
        finish(axes)
        return saved(figure, "png")


def _auroc(records: Sequence[ResultRecord], key: str) -> float:
    """The mean AUROC on a set or group; NaN without records of it."""
    return (
        fmean(record.metrics[key]["auroc"] for record in records) if records and key in records[0].metrics else np.nan
    )


def _rows(names: Sequence[str], values: NDArray[np.float64]) -> _Rows:
    """The rows of a table, with None for NaN."""
    return [(name, *(None if np.isnan(v) else float(v) for v in row)) for name, row in zip(names, values, strict=True)]
