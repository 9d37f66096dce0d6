"""Curves of a study's runs from their cached scores: OSCR, guaranteed FPR, rates by threshold, calibration folds.

`charts` computes them; `drawn` is the picture of a chart, `points` and `summary` are its tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import floor
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta
from scipy.stats.distributions import rv_frozen

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, MetricError
from openbench.metrics.conformal.corrections import FINITE_SAMPLE, correction_table
from openbench.metrics.conformal.p_values import conformal_auroc, conformal_fpr
from openbench.metrics.curve import PooledCurve
from openbench.metrics.options import MetricOptions
from openbench.metrics.selective.risk import SelectiveCurve, TprFpr, oscr, oscr_selective
from openbench.metrics.suite import fixed_thresholds
from openbench.metrics.threshold import balanced_threshold, choose_scale, shared_thresholds, threshold_areas
from openbench.results import escape
from openbench.results.plots import INK, finish, lines, panels, right_share, saved, sides, thinned
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import Cell as TableCell, Column, Table, to_csv
from openbench.studies.cells import Cell
from openbench.studies.study import Study

FOLDS = 53  # as in the paper
ALPHA = 0.05  # p-values up to it are flagged
_STEPS = 401  # of a threshold between the lowest and the highest scaled score
GUARANTEED = ", guaranteed"  # ends the name of the line that goes with another
MARKS = {"test": "equal rates, test", "95tnr": "95 % of ID accepted", "val": "equal rates, validation"}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Args:
        panel: its title.
        name: of the row, or of what is drawn of it.
        x: (k,) positions.
        y: (k,) heights.
        value: its area or mean, a fraction; None for none.
        published: the published figure for it.
    """

    panel: str
    name: str
    x: Floats
    y: Floats
    value: float | None = None
    published: float | None = None


@dataclass(frozen=True)
class Chart:
    """The curves of one kind.

    Args:
        title: as printed.
        axes: the labels of x and y.
        lines: of all panels.
        value: the name of `Line.value`.
        marks: {title of a panel: {what: position of a threshold}}.
        ticks: names of the positions 0, 1, …; empty where x is a number.
        log: whether x is on a log scale.
        without: rows with records whose scores are not cached.
        unable: rows that cannot be drawn, since scores are infinite or all the same.
    """

    title: str
    axes: tuple[str, str]
    lines: Sequence[Line]
    value: str
    marks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ticks: Sequence[str] = ()
    log: bool = False
    without: Sequence[str] = ()
    unable: Sequence[str] = ()

    @property
    def panels(self) -> dict[str, list[Line]]:
        """The lines by the title of their panel."""
        return {
            title: [line for line in self.lines if line.panel == title]
            for title in dict.fromkeys(line.panel for line in self.lines)
        }

    @property
    def names(self) -> list[str]:
        """The names of all lines, each once."""
        return list(dict.fromkeys(line.name for of_panel in self.panels.values() for line in of_panel))


@dataclass(frozen=True)
class ScoredRun:
    """A run with its cached scores.

    Args:
        row: the path of the study's row that it is in.
        group: the value of the repeated key.
        benchmark: its name.
        sets: of scores.
        figures: {(set, metric): published figure} of the cells of its row.
        options: of metrics, as the run's record has them.
    """

    row: str
    group: str
    benchmark: str
    sets: Sequence[SetScores]
    figures: Mapping[tuple[str, str], float]
    options: MetricOptions = field(default_factory=MetricOptions)


def charts(study: Study, cells: Sequence[Sequence[Cell]], scores: ScoreStore) -> dict[str, Chart]:
    """Return {kind: the chart} for the option `curves` of a study, of the runs whose scores are cached.

    Args:
        study: with the option.
        cells: row by row.
        scores: where the scores of the runs are.
    """
    kinds = study.options.curves
    runs = list(_scored(cells, scores)) if kinds else []
    rows = [line[0].row.path for line in cells if any(cell.records for cell in line)]
    without = [row for row in rows if row not in {run.row for run in runs}]
    made = {kind: replace(KINDS[kind](runs), without=without) for kind in kinds if runs}
    return {kind: chart for kind, chart in made.items() if chart.lines}


def _scored(cells: Sequence[Sequence[Cell]], scores: ScoreStore) -> Iterator[ScoredRun]:
    """Every run of the cells once in each row, with its scores; runs without scores are left out."""
    for line in cells:
        for at, run in {run.run_id: (at, run) for cell in line for at, run in cell.records.items()}.values():
            same = [cell for cell in line if cell.records.get(at) is run]
            printed = {(c.column.set, c.column.key): c.published.value.value for c in same if c.published}
            try:
                sets = scores.read(run.run_id)
            except CacheError:
                continue
            yield ScoredRun(line[0].row.path, at, run.benchmark, sets, printed, MetricOptions(**run.options))


def _pairs(runs: Sequence[ScoredRun]) -> Iterator[tuple[str, ScoredRun, SetScores, SetScores]]:
    """The panel of every OOD set of every benchmark, with the first run of each row, ID test and the OOD set."""
    first = dict[tuple[str, str], ScoredRun]()
    for run in runs:
        first.setdefault((run.row, run.benchmark), run)
    for run in first.values():
        ids, oods = sides(run.sets)
        yield from ((f"{run.benchmark}: {ood.name}", run, ids, ood) for ood in oods)


def _selective(runs: Sequence[ScoredRun], key: str) -> Chart:
    """A height over the share of OOD accepted, of the runs that classify.

    Reference: OSCR: Dhamija et al., NeurIPS 2018, arXiv 1811.04110; of the accepted: Franc et al., 2023, arXiv
        2307.05199.
    """
    lines, (area, height, label) = list[Line](), _OSCR[key]
    for panel, run, ids, ood in _pairs(runs):
        if ids.correct is not None:
            curve = SelectiveCurve.of(ids.scores, 1.0 - np.asarray(ids.correct, float), ood.scores)
            accepted, printed = curve.pair.ood_accepted / curve.pair.m, run.figures.get((ood.name, key))
            lines.append(Line(panel, run.row, accepted, height(curve), area(curve), printed))
    return Chart("OSCR curves", ("OOD accepted", label), lines, "OSCR", log=True)


def _accuracy(curve: SelectiveCurve) -> Floats:
    """The accuracy among the accepted ID inputs; 0 where none is accepted."""
    where = TprFpr(0.0, 1.0).feasible(curve.pair)
    return np.where(curve.pair.id_accepted[where] > 0, 1.0 - curve.risk(where), 0.0)


def _conformal(runs: Sequence[ScoredRun]) -> Chart:
    """ROC as measured, and with the FPR that holds with probability 1 − δ (Bates et al. 2023, arXiv 2104.08279)."""
    lines = list[Line]()
    for panel, run, ids, ood in _pairs(runs):
        curve = PooledCurve.of(ids.scores, ood.scores)
        table = correction_table(len(ids.scores), run.options.delta, run.options.correction)
        tpr, flagged = 1 - curve.ood_accepted / curve.m, curve.n - curve.id_accepted
        printed = [run.figures.get((ood.name, key)) for key in ("auroc", "conformal_auroc")]
        sure, area = conformal_fpr(flagged, table), conformal_auroc(curve, table)
        lines.append(Line(panel, run.row, flagged / curve.n, tpr, curve.auroc(), printed[0]))
        lines.append(Line(panel, f"{run.row}{GUARANTEED}", sure, tpr, area, printed[1]))
    title = f"ROC, measured and guaranteed with probability {1 - runs[0].options.delta:g}"
    return Chart(title, ("FPR (ID flagged)", "TPR (OOD flagged)"), lines, "AUROC", log=True)


def _corrections(runs: Sequence[ScoredRun]) -> Chart:
    """By how much each correction raises a conformal p-value, for the number of ID test images of the runs."""
    delta, lines = runs[0].options.delta, list[Line]()
    for n in sorted({len(sides(run.sets)[0].scores) for run in runs}):
        p = np.arange(1, n + 2) / (n + 1)
        for name in FINITE_SAMPLE:
            raised = correction_table(n, delta, name) - p
            lines.append(Line(f"n = {n:,}, δ = {delta:g}", name, p, raised, float(raised.mean())))
    axes = ("p-value, marginal", "what the correction adds")
    return Chart("conformal corrections", axes, lines, "mean addition")


def _autc(runs: Sequence[ScoredRun]) -> Chart:
    """FPR and FNR over the scaled threshold with three thresholds marked (Humblot-Renaux et al. 2023, 2306.14658)."""
    lines, marks, unable = list[Line](), dict[str, dict[str, float]](), list[str]()
    for _, run, id_test, ood in _pairs(runs):
        ids, scores, *others = (np.asarray(s.scores, float) for s in (id_test, ood, *sides(run.sets)[1]))
        validation = [np.asarray(s.scores, float) for s in run.sets if s.role in (Role.ID_VAL, Role.OOD_VAL)]
        try:
            scale = choose_scale(run.options.autc_scaling, (ids, scores), (ids, *others), validation)
        except MetricError:
            unable.append(f"{run.row} ({ood.name})")
            continue
        areas = threshold_areas(ids, scores, scale, run.options.autc_weight)
        pair, t = PooledCurve.of(ids, scores), np.linspace(0, 1, _STEPS)
        fpr, fnr = np.array([pair.rates(pair.at(scale.low + at * (scale.high - scale.low))) for at in t]).T
        title = f"{run.row}, {ood.name}: AUTC {100 * areas.autc:.2f}"
        lines += [Line(title, "FPR", t, fpr, areas.aufpr), Line(title, "FNR", t, fnr, areas.aufnr)]
        at = {"test": balanced_threshold(pair), **fixed_thresholds(run.sets)}
        marks[title] = {MARKS[name]: scale(min(max(value, scale.low), scale.high)) for name, value in at.items()}
    return Chart("rates by threshold", ("threshold (scaled score)", "rate"), lines, "area", marks, unable=unable)


def _fluctuation(runs: Sequence[ScoredRun]) -> Chart:
    """Where each row's best threshold lies in every group, and F1 there and at one threshold for all.

    Thresholds are less their mean, in deviations of the ID score (mean over groups); OOD is positive, and the OOD sets
    of a group are pooled.

    Reference: Re-benchmarking out-of-distribution detection in deep neural networks, OpenReview VkPuKTKH2Gx.
    """
    rows: dict[str, dict[str, ScoredRun]] = {}
    for run in runs:
        rows.setdefault(run.row, {}).setdefault(run.group, run)
    groups = list(dict.fromkeys(group for of in rows.values() for group in of))
    lines, unable = list[Line](), list[str]()
    for name, of in rows.items():
        pairs = {group: _pooled(run.sets) for group, run in of.items()}
        try:
            shared = shared_thresholds(pairs)
        except MetricError:
            shared = None
        if shared is None or shared.relative_std is None:  # a threshold is infinite, or ID scores have no deviation
            unable.append(name)
            continue
        at = np.array([groups.index(group) for group in of], float)
        best, own, single = (
            np.array([getattr(shared.groups[group], key) for group in of]) for key in ("threshold", "own", "single")
        )
        moved = (best - best.mean()) / float(np.mean([np.std(ids) for ids, _ in pairs.values()]))
        printed = next((v for run in of.values() for (_, key), v in run.figures.items() if key == "pooled_f1"), None)
        lines += [
            Line("best threshold less its mean, in deviations of the ID score", name, at, moved, shared.relative_std),
            Line("F1 at the group's best threshold", name, at, own, float(own.mean()), printed),
            Line("F1 at one threshold for all groups", name, at, single, float(single.mean())),
        ]
    axes, value = ("group", "deviations or F1"), "deviation or mean"
    return Chart("thresholds over groups", axes, lines, value, ticks=groups, unable=unable)


def _pooled(sets: Sequence[SetScores]) -> tuple[Floats, Floats]:
    ids, oods = sides(sets)
    return np.asarray(ids.scores, float), np.concatenate([np.asarray(ood.scores, float) for ood in oods])


def _calibration(runs: Sequence[ScoredRun]) -> Chart:
    """The share of calibration folds whose FPR at α is at most x, and its law, for the first run of each row.

    Reference: Novello et al. 2024, arXiv 2403.11532.
    """
    lines, laws, unable = dict[tuple[str, str], Line](), dict[str, rv_frozen](), dict[str, None]()
    for run in runs:
        ids = sides(run.sets)[0].scores
        title = f"{run.benchmark}: {FOLDS} folds of {len(ids) // FOLDS} ID images"
        try:
            found, laws[title] = fold_rates(ids)
        except MetricError:
            unable[run.row] = None
            continue
        share = np.arange(1, FOLDS + 1) / FOLDS
        lines.setdefault((title, run.row), Line(title, run.row, found, share, float(found.mean())))
    drawn_lines = list(lines.values())
    for title, law in laws.items():
        x = np.linspace(0, max(line.x[-1] for line in lines.values() if line.panel == title), _STEPS)
        drawn_lines.append(Line(title, "Beta({}, {})".format(*law.args), x, law.cdf(x), float(law.mean())))
    axes = (f"FPR at α = {ALPHA:g}", "share of folds")
    return Chart("FPR over calibration folds", axes, drawn_lines, "mean FPR", unable=list(unable))


def fold_rates(scores: ArrayLike) -> tuple[Floats, rv_frozen]:
    """Return the FPR over 53 disjoint folds of ID images, drawn with seed 0, each of which calibrates for the others.

    p = (1 + #{calibration scores ≥ s})/(n+1) is at most α where s is above the k-th largest of the fold, k = ⌊α(n+1)⌋.
    Returned are the share of the other folds' images with p ≤ α, ascending, and its law, Beta(k, n+1−k).

    Args:
        scores: (m,) of ID images.

    Raises:
        MetricError: a fold would have fewer than 1/α − 1 images.

    Reference: Novello et al., "Out-of-distribution detection should use conformal prediction", 2024, arXiv 2403.11532;
        the law is Vovk's, 2012, arXiv 1209.2673. The paper has folds of 10,000 images, here n = ⌊m/53⌋.
    """
    ids = np.asarray(scores, float)
    n = len(ids) // FOLDS
    rank = floor(ALPHA * (n + 1))
    if rank == 0:
        raise MetricError(f"{len(ids)} ID scores in {FOLDS} folds — at least {round(1 / ALPHA) - 1} each are needed")
    folds = np.random.default_rng(0).permutation(ids)[: n * FOLDS].reshape(FOLDS, n)
    bounds = np.partition(folds, n - rank, axis=1)[:, n - rank]
    rates = [(np.delete(folds, at, axis=0) > bound).mean() for at, bound in enumerate(bounds)]
    return np.sort(rates), beta(rank, n + 1 - rank)


_OSCR: Mapping[str, tuple[Callable[[SelectiveCurve], float], Callable[[SelectiveCurve], Floats], str]] = {
    "oscr": (oscr, right_share, "CCR (ID accepted and right)"),
    "oscr_selective": (oscr_selective, _accuracy, "accuracy of the accepted ID"),
}
# The same kinds as `study.Curve`.
KINDS: Mapping[str, Callable[[Sequence[ScoredRun]], Chart]] = {
    **{key: partial(_selective, key=key) for key in _OSCR},
    "conformal": _conformal,
    "corrections": _corrections,
    "autc": _autc,
    "fluctuation": _fluctuation,
    "calibration": _calibration,
}

_POINTS = 50  # of a line in the table of points
_SMALL = 1e-2  # below it x is drawn linear
_OWN_LEGEND = 8  # lines; more have one legend for all panels
_HIGH = 0.5  # lines that never come below it are shown from there


def content(chart: Chart, form: str) -> bytes:
    """Return a chart as png, svg, or as csv of its points."""
    return to_csv(points(chart)).encode() if form == "csv" else saved(drawn(chart), form)


def drawn(chart: Chart) -> Figure:
    """Return the picture of a chart: lines of the same name look alike in all panels."""
    figure, every = panels(len(chart.panels))
    styles, own_legend = _styles(chart), len(chart.names) <= _OWN_LEGEND
    for axes, (title, of_panel) in zip(every, chart.panels.items(), strict=True):
        for line in of_panel:
            marker: dict[str, Any] = {"marker": "o", "markersize": 3} if chart.ticks else {}
            x, y = (line.x, line.y) if chart.ticks else thinned(line.x, line.y)
            label = line.name
            if own_legend:
                label += "" if line.value is None else f" {line.value:.3f}"
                label += "" if line.published is None else f" (paper {line.published:.3f})"
            axes.plot(x, y, **styles[line.name], **marker, label=escape.plot(label))
        for at, (name, place) in enumerate(chart.marks.get(title, {}).items()):
            axes.axvline(place, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
            side = "left" if place < 0.6 else "right"
            axes.text(place, 0.97 - 0.09 * at, f" {name} ", fontsize=6.5, ha=side, va="top", color=INK)
        _scale(axes, chart, np.concatenate([line.y[line.y > 0] for line in of_panel]))
        axes.set(xlabel=chart.axes[0], ylabel=chart.axes[1])
        axes.set_title(escape.plot(title), fontsize=9)
        finish(axes, "best" if own_legend else None)
    if not own_legend:
        pairs = [pair for axes in every for pair in zip(*axes.get_legend_handles_labels()[::-1], strict=True)]
        handles, names = dict(pairs), list(map(escape.plot, chart.names))
        look: Any = {"loc": "outside lower center", "ncols": 4, "fontsize": 7.5, "frameon": False}
        figure.legend([handles[name] for name in names], names, **look)
    return figure


def _scale(axes: Axes, chart: Chart, heights: Floats) -> None:
    """Set a linear scale for small x, names of positions, and limits of y that fit lines near 1."""
    if chart.log:
        axes.set_xscale("symlog", linthresh=_SMALL)
        axes.set_xlim(0, 1)
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), list(map(escape.plot, chart.ticks)), rotation=90, fontsize=6)
    if heights.size and heights.min() > _HIGH and heights.max() <= 1:
        axes.set_ylim(heights.min() - 0.1 * (1 - heights.min()) - 1e-3, 1 + 0.1 * (1 - heights.min()))


def _styles(chart: Chart) -> dict[str, dict[str, Any]]:
    """{name of a line: how it is drawn}; the guaranteed rate is drawn as the measured one, but fainter."""
    styles: dict[str, dict[str, Any]] = {}
    fresh = lines()
    for name in chart.names:
        measured = styles.get(name.removesuffix(GUARANTEED))
        styles[name] = next(fresh) if measured is None else {**measured, "linewidth": 0.8, "alpha": 0.6}
    return styles


def points(chart: Chart) -> Table:
    """Return the points of every line, up to 50 of each; thresholds that are marked have no y."""
    rows: list[tuple[TableCell, ...]] = []
    for title, of_panel in chart.panels.items():
        for line in of_panel:
            x, y = thinned(line.x, line.y)
            for at in np.unique(np.linspace(0, x.size - 1, min(x.size, _POINTS)).round().astype(int)):
                place = chart.ticks[int(x[at])] if chart.ticks else _short(x[at])
                rows.append((title, line.name, place, _short(y[at]), _short(line.value), line.published))
        marks = chart.marks.get(title, {})
        rows += [(title, f"threshold: {name}", _short(place), None, None, None) for name, place in marks.items()]
    return Table(chart.title, Column.of("panel", "line", "x", "y", "value", "published"), tuple(rows))


def _short(value: float | None) -> str:
    return "" if value is None else f"{float(value):.5g}"


def summary(chart: Chart) -> Table:
    """Return the area or mean of each line, with the published one in brackets where the paper prints it."""
    values = {frozenset((line.panel, line.name)): _value(line) for line in chart.lines}
    columns, rows = sorted((list(chart.panels), chart.names), key=len)
    grid = [(row, *(values.get(frozenset((row, column))) for column in columns)) for row in rows]
    notes = ["of the first run of each row"] * (not chart.ticks)
    for title, marks in chart.marks.items():
        notes.append(f"{title}: thresholds " + ", ".join(f"{name} at {place:.3f}" for name, place in marks.items()))
    notes += [f"without, since their scores are not kept: {', '.join(chart.without)}"] * bool(chart.without)
    notes += [f"without, since scores are infinite or all the same: {', '.join(chart.unable)}"] * bool(chart.unable)
    printed = any(line.published is not None for line in chart.lines)
    notes += ["in brackets: as published"] * printed
    heads = (Column(""), *(Column(title, "number") for title in columns))
    return Table(f"{chart.title}: {chart.value}", heads, tuple(grid), notes=tuple(notes))


def _value(line: Line) -> str | None:
    if line.value is None:
        return None
    return f"{line.value:.4f}" + (f" ({line.published:.3f})" if line.published is not None else "")
