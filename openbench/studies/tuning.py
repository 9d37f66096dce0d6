"""The layout `tuning`: what hyper-parameters chosen in several ways are worth, as tables and a picture.

A column is a way of choosing (`tune=…`), and one of them the oracle, whose trials have the AUROC of every setting on
every OOD set: from these come the best setting of each set and what is lost by the choice for another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from scipy.stats import kendalltau, rankdata

from openbench.core.record import ResultRecord
from openbench.results import escape
from openbench.results.plots import COLOURS, finish, panels, saved
from openbench.results.tables.render import Cell as TableCell, Column, Table
from openbench.results.tables.views import GROUPS, members_of
from openbench.studies.cells import Grid, without
from openbench.studies.study import Study

K = TypeVar("K")
_Rows = list[tuple[TableCell, ...]]
_MARKERS = "osD^v"
_ROW, _TOP = 0.22, 1.1  # inches
_STEP = 0.15  # of a row between the points of two ways


@dataclass(frozen=True)
class _Method:
    """A row of the study; AUROCs are means over its seeds.

    Args:
        name: as printed.
        auroc: {way of choosing: {set or group: AUROC}}; without the ways that have no record.
        best: {set: the highest AUROC of a setting that the oracle tried}; empty without an oracle.
        cross: {(A, B): AUROC on set B of the setting that is best on set A}; empty where trials are not by set.
    """

    name: str
    auroc: Mapping[str, Mapping[str, float]]
    best: Mapping[str, float]
    cross: Mapping[tuple[str, str], float]

    def mean(self, way: str) -> float | None:
        """The mean AUROC over the OOD sets; None without a record."""
        return fmean(self.auroc[way][s] for s in self.best) if way in self.auroc and self.best else None

    def regret(self, way: str) -> float | None:
        """The mean over the sets of the best setting's AUROC less that of the chosen one; None without a record."""
        mean = self.mean(way)
        return None if mean is None else _rounded(fmean(self.best.values()) - mean)


class Tuning:
    """The methods of a study and how well each way of choosing serves them.

    Args:
        study: with the layout `tuning`; its first column keeps the defaults, its last one is the oracle.
        grid: the cells, row by row.
        records: of the runs in the cells.
    """

    def __init__(self, study: Study, grid: Grid, records: Sequence[ResultRecord]) -> None:
        by_id = {record.run_id: record for record in records}
        self._title, self._notes = study.title, (*without(grid), *study.about)
        self._ways = [column.name for column in study.columns]
        members = members_of(records[0]) if records else {}
        sets = [name for group in GROUPS for name in members.get(group, ())]
        self._methods = []
        for line in grid:
            ways = {c.column.name: [by_id[run.run_id] for run in c.records.values()] for c in line if c.records}
            self._methods.append(_method(line[0].row.name, ways, self._ways[-1], sets))
        self._complete = [m for m in self._methods if m.best and all(way in m.auroc for way in self._ways)]

    def tables(self) -> list[Table]:
        """AUROCs, regrets, orders of methods, and choices for one set tested on another."""
        return [self._aurocs(), self._regrets(), self._orders(), self._cross()]

    def _aurocs(self) -> Table:
        columns = [Column(f"{way} ↑", "percent", group=group) for group in GROUPS for way in self._ways]
        rows = [(m.name, *(m.auroc.get(w, {}).get(g) for g in GROUPS for w in self._ways)) for m in self._methods]
        return Table(f"{self._title}: AUROC", (Column("method"), *columns), tuple(rows), notes=self._notes)

    def _regrets(self) -> Table:
        rows: _Rows = [
            (m.name, *map(m.regret, self._ways), *(self._gain(m, w) for w in self._ways[1:])) for m in self._methods
        ]
        complete = self._complete
        if complete:
            means = [fmean(values) for values in zip(*([*map(m.regret, self._ways)] for m in complete), strict=True)]
            rows.append((f"mean of {len(complete)}", *means, *(means[0] - mean for mean in means[1:])))
        columns = [Column(f"{way} ↓", "percent", group="regret") for way in self._ways]
        columns += [Column(f"{way} ↑", "percent", group="gain") for way in self._ways[1:]]
        notes = (
            "regret: AUROC of the best setting of each OOD set less that of the chosen one, mean over the sets; below "
            "zero where defaults outside of the space are better than all settings in it",
            f"gain: mean AUROC over the sets less that of {self._ways[0]}; last row: methods that have every column",
        )
        return Table(f"{self._title}: regret", (Column("method"), *columns), tuple(rows), notes=notes)

    def _gain(self, method: _Method, way: str) -> float | None:
        base, mean = method.mean(self._ways[0]), method.mean(way)
        return None if mean is None or base is None else _rounded(mean - base)

    def _orders(self) -> Table:
        complete, rows = self._complete, _Rows()
        for way in self._ways if len(complete) > 1 else ():
            places = [rankdata([-(m.mean(w) or 0.0) for m in complete]) for w in (self._ways[0], way)]
            moved = abs(places[0] - places[1])
            tau = float(kendalltau(*places).statistic)
            best = complete[int(places[1].argmin())].name
            rows.append((way, tau, float(moved.mean()), float(moved.max()), best))
        titles = (f"τ with {self._ways[0]}", "places moved, mean", "places moved, most")
        columns = (Column("chosen by"), *(Column(title, "number") for title in titles), Column("first"))
        notes = (f"order of {len(complete)} methods by mean AUROC over the OOD sets; τ: Kendall's",)
        return Table(f"{self._title}: order of methods", columns, tuple(rows), notes=notes)

    def _cross(self) -> Table:
        methods = [m for m in self._methods if m.cross]
        sets = list(methods[0].best) if methods else []
        rows: _Rows = [(a, *(fmean(m.best[b] - m.cross[a, b] for m in methods) for b in sets)) for a in sets]
        columns = (Column("chosen on"), *(Column(f"{b} ↓", "percent") for b in sets))
        notes = (f"mean regret of {len(methods)} methods on a set where the setting is the best one of another set",)
        return Table(f"{self._title}: chosen on one set, tested on another", columns, tuple(rows), notes=notes)

    def picture(self) -> bytes:
        """Return a PNG: each method's gain over its defaults by every way of choosing."""
        methods = [m for m in self._methods if m.mean(self._ways[0]) is not None][::-1]
        figure, (axes,) = panels(1, (6.4, _TOP + _ROW * len(methods)))
        for at, (way, marker) in enumerate(zip(self._ways[1:], _MARKERS, strict=False)):
            points = [(gain, y) for y, m in enumerate(methods) if (gain := self._gain(m, way)) is not None]
            x, y = [100 * gain for gain, _ in points], [y + _STEP * (1.5 - at) for _, y in points]
            colour = COLOURS[at % len(COLOURS)]
            axes.plot(x, y, linestyle="", marker=marker, markersize=4.5, color=colour, label=escape.plot(way))
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(methods)), [escape.plot(m.name) for m in methods], fontsize=7)
        axes.set_xlabel("gain in mean AUROC over the defaults, percentage points")
        axes.set_title(escape.plot(self._title), fontsize=9)
        finish(axes)
        return saved(figure, "png")


def _method(name: str, ways: Mapping[str, Sequence[ResultRecord]], oracle: str, sets: Sequence[str]) -> _Method:
    auroc = {
        way: _mean([{key: r.metrics[key]["auroc"] for key in (*sets, *GROUPS) if key in r.metrics} for r in records])
        for way, records in ways.items()
    }
    tried = [[t["sets"] for t in record.trials if "sets" in t] for record in ways.get(oracle, ())]
    if not tried or not all(tried):
        return _Method(name, auroc, {s: auroc[oracle][s] for s in sets if oracle in auroc}, {})
    cross = _mean([{(a, b): max(t, key=lambda one: one[a])[b] for a in sets for b in sets} for t in tried])
    return _Method(name, auroc, {s: cross[s, s] for s in sets}, cross)


def _rounded(difference: float) -> float:
    """A difference without what processors differ by, and never −0."""
    return round(difference, 6) + 0.0


def _mean(values: Sequence[Mapping[K, float]]) -> dict[K, float]:
    """The mean over mappings with the same keys."""
    return {key: fmean(one[key] for one in values) for key in values[0]}
