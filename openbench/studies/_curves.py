"""Curves of a study's runs from their cached scores: OSCR, guaranteed FPR, rates by threshold, calibration folds."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap
from math import floor

import numpy as np
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
from openbench.metrics.threshold import (
    balanced_threshold,
    choose_scale,
    shared_thresholds,
    threshold_areas,
)
from openbench.results.frame import Run
from openbench.results.plots import sides
from openbench.results.scores.stored import ScoreStore
from openbench.studies.cells import Cell
from openbench.studies.study import Study

FOLDS = 53  # as in the paper
ALPHA = 0.05  # p-values up to it are flagged
Floats = NDArray[np.float64]


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
    drawn = np.random.default_rng(0).permutation(ids)[: n * FOLDS].reshape(FOLDS, n)
    bounds = np.partition(drawn, n - rank, axis=1)[:, n - rank]
    rates = [(np.delete(drawn, at, axis=0) > bound).mean() for at, bound in enumerate(bounds)]
    return np.sort(rates), beta(rank, n + 1 - rank)


_STEPS = 401  # of a threshold between the lowest and the highest scaled score
_OPTIONS = ("delta", "correction", "autc_scaling", "autc_weight")  # of metrics, on which curves depend
GUARANTEED = ", guaranteed"  # ends the name of the line that goes with another
MARKS = {"test": "equal rates, test", "95tnr": "95 % of ID accepted", "val": "equal rates, validation"}


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Args:
        name: of the row, or of what is drawn of it.
        x: (k,) positions.
        y: (k,) heights.
        value: its area or mean, a fraction; None for none.
        published: the published figure for it.
    """

    name: str
    x: Floats
    y: Floats
    value: float | None = None
    published: float | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Args:
        title: as printed.
        lines: from first to last.
        marks: {what: position} of thresholds.
    """

    title: str
    lines: tuple[Line, ...]
    marks: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Chart:
    """The curves of one kind.

    Args:
        kind: as the study's options name it.
        title: as printed.
        axes: the labels of x and y.
        panels: in reading order.
        value: the name of `Line.value`; empty for none.
        ticks: names of the positions 0, 1, …; empty where x is a number.
        log: whether x is on a log scale.
        without: rows with records whose scores are not cached.
        unable: rows that cannot be drawn, since scores are infinite or all the same.
    """

    kind: str
    title: str
    axes: tuple[str, str]
    panels: tuple[Panel, ...]
    value: str = ""
    ticks: tuple[str, ...] = ()
    log: bool = False
    without: tuple[str, ...] = ()
    unable: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScoredCell:
    """A run with its cached scores.

    Args:
        cell: a cell that the run is in.
        group: the value of the repeated key.
        benchmark: its name.
        sets: of scores.
        figures: {(set, metric): published figure} of the cells of its row.
        options: of metrics, as the run's record has them.
    """

    cell: Cell
    group: str
    benchmark: str
    sets: Sequence[SetScores]
    figures: Mapping[tuple[str, str], float]
    options: MetricOptions = field(default_factory=MetricOptions)


def charts(study: Study, cells: Sequence[Sequence[Cell]], scores: ScoreStore) -> list[Chart]:
    """Return the charts that a study asks for with the option `curves`, of the runs whose scores are cached.

    Args:
        study: with the option.
        cells: row by row.
        scores: where the scores of the runs are.
    """
    kinds = study.options.get("curves", ())
    runs = list(_scored(cells, scores)) if kinds else []
    rows = [line[0].row.path for line in cells if any(cell.records for cell in line)]
    without = tuple(row for row in rows if row not in {run.cell.row.path for run in runs})
    made = [KINDS[kind](runs) for kind in kinds if runs]
    return [replace(chart, without=without) for chart in made if chart.panels]


def _scored(cells: Sequence[Sequence[Cell]], scores: ScoreStore) -> Iterator[ScoredCell]:
    """Every run of the cells once, with its scores; runs without scores are left out."""
    for line in cells:
        runs: dict[str, tuple[Cell, str, Run]] = {}
        for cell in line:
            for at, run in cell.records.items():
                runs.setdefault(run.run_id, (cell, at, run))
        for cell, at, run in runs.values():
            same = [c for c in line if c.records.get(at) is run]
            printed = {(c.column.set, c.column.key): c.published.value.value for c in same if c.published}
            options = {key: run.metrics_node[key] for key in _OPTIONS if key in (run.metrics_node or {})}
            try:
                sets = scores.read(run.run_id)
            except CacheError:
                continue
            yield ScoredCell(cell, at, run.benchmark, sets, printed, MetricOptions(**options))


def _first(runs: Sequence[ScoredCell]) -> Iterable[ScoredCell]:
    """The first run of each row and benchmark."""
    first: dict[tuple[str, str], ScoredCell] = {}
    for run in runs:
        first.setdefault((run.cell.row.path, run.benchmark), run)
    return first.values()


def _by_set(
    runs: Sequence[ScoredCell], line: Callable[[ScoredCell, SetScores, SetScores], Sequence[Line]]
) -> tuple[Panel, ...]:
    """A panel for every OOD set of every benchmark, with the lines of each row's first run."""
    panels: dict[tuple[str, str], list[Line]] = {}
    for run in _first(runs):
        ids, oods = sides(run.sets)
        for ood in oods:
            panels.setdefault((run.benchmark, ood.name), []).extend(line(run, ids, ood))
    return tuple(Panel(f"{benchmark}: {name}", tuple(lines)) for (benchmark, name), lines in panels.items() if lines)


def _selective(
    runs: Sequence[ScoredCell],
    key: str,
    value: Callable[[SelectiveCurve], float],
    height: Callable[[SelectiveCurve], Floats],
) -> tuple[Panel, ...]:
    """The lines of the runs that classify: `height` over the share of OOD accepted."""

    def line(run: ScoredCell, ids: SetScores, ood: SetScores) -> list[Line]:
        if ids.correct is None:
            return []
        curve = SelectiveCurve.of(ids.scores, 1.0 - np.asarray(ids.correct, float), ood.scores)
        accepted = curve.pair.ood_accepted / curve.pair.m
        printed = run.figures.get((ood.name, key))
        return [Line(run.cell.row.path, accepted, height(curve), value(curve), printed)]

    return _by_set(runs, line)


def _ccr(curve: SelectiveCurve) -> Floats:
    return np.asarray((curve.pair.id_accepted - curve.cumulated[curve.pair.id_accepted]) / curve.pair.n)


def _accuracy(curve: SelectiveCurve) -> Floats:
    """The accuracy among the accepted ID inputs; 0 where none is accepted."""
    where = TprFpr(0.0, 1.0).feasible(curve.pair)
    accepted = curve.pair.id_accepted[where]
    return np.where(accepted > 0, 1.0 - curve.risk(where), 0.0)


def _oscr(runs: Sequence[ScoredCell]) -> Chart:
    """CCR over the share of OOD accepted (Dhamija et al., NeurIPS 2018, arXiv 1811.04110)."""
    axes = ("OOD accepted", "CCR (ID accepted and right)")
    return Chart("oscr", "OSCR curves", axes, _selective(runs, "oscr", oscr, _ccr), "OSCR", log=True)


def _oscr_selective(runs: Sequence[ScoredCell]) -> Chart:
    """Accuracy of the accepted over the share of OOD accepted (Franc et al. 2023, arXiv 2307.05199)."""
    axes = ("OOD accepted", "accuracy of the accepted ID")
    panels = _selective(runs, "oscr_selective", oscr_selective, _accuracy)
    return Chart("oscr_selective", "OSCR curves", axes, panels, "OSCR", log=True)


def _conformal(runs: Sequence[ScoredCell]) -> Chart:
    """ROC as measured, and with the FPR that holds with probability 1 − δ (Bates et al. 2023, arXiv 2104.08279)."""

    def line(run: ScoredCell, ids: SetScores, ood: SetScores) -> list[Line]:
        curve, options = PooledCurve.of(ids.scores, ood.scores), run.options
        table = correction_table(len(ids.scores), options.delta, options.correction)
        tpr, flagged = 1 - curve.ood_accepted / curve.m, curve.n - curve.id_accepted
        name, sure = run.cell.row.path, conformal_fpr(flagged, table)
        printed = [run.figures.get((ood.name, key)) for key in ("auroc", "conformal_auroc")]
        return [
            Line(name, flagged / curve.n, tpr, curve.auroc(), printed[0]),
            Line(f"{name}{GUARANTEED}", sure, tpr, conformal_auroc(curve, table), printed[1]),
        ]

    title = f"ROC, measured and guaranteed with probability {1 - runs[0].options.delta:g}"
    return Chart("conformal", title, ("FPR (ID flagged)", "TPR (OOD flagged)"), _by_set(runs, line), "AUROC", log=True)


def _corrections(runs: Sequence[ScoredCell]) -> Chart:
    """By how much each correction raises a conformal p-value, for the number of ID test images of the runs."""
    delta, panels = runs[0].options.delta, []
    for n in sorted({len(sides(run.sets)[0].scores) for run in runs}):
        p = np.arange(1, n + 2) / (n + 1)
        lines = []
        for name in FINITE_SAMPLE:
            raised = correction_table(n, delta, name) - p
            lines.append(Line(name, p, raised, float(raised.mean())))
        panels.append(Panel(f"n = {n:,}, δ = {delta:g}", tuple(lines)))
    axes = ("p-value, marginal", "what the correction adds")
    return Chart("corrections", "conformal corrections", axes, tuple(panels), "mean addition")


def _autc(runs: Sequence[ScoredCell]) -> Chart:
    """FPR and FNR over the scaled threshold with three thresholds marked (Humblot-Renaux et al. 2023, 2306.14658)."""
    panels, unable = list[Panel](), list[str]()
    for run in _first(runs):
        for ood in sides(run.sets)[1]:
            try:
                panels.append(_rates(run, ood))
            except MetricError:
                unable.append(f"{run.cell.row.path} ({ood.name})")
    axes = ("threshold (scaled score)", "rate")
    return Chart("autc", "rates by threshold", axes, tuple(panels), "area", unable=tuple(unable))


def _rates(run: ScoredCell, ood: SetScores) -> Panel:
    """FPR and FNR of a run on one of its OOD sets.

    Raises:
        MetricError: its scores cannot be scaled to [0, 1].
    """
    (ids, oods), options = sides(run.sets), run.options
    every = [np.asarray(s.scores, float) for s in (ids, *oods)]
    validation = [np.asarray(s.scores, float) for s in run.sets if s.role in (Role.ID_VAL, Role.OOD_VAL)]
    scores = np.asarray(ood.scores, float)
    scale = choose_scale(options.autc_scaling, (every[0], scores), every, validation)
    areas = threshold_areas(every[0], scores, scale, options.autc_weight)
    pair, t = PooledCurve.of(every[0], scores), np.linspace(0, 1, _STEPS)
    fpr, fnr = np.array([pair.rates(pair.at(scale.low + at * (scale.high - scale.low))) for at in t]).T
    lines = (Line("FPR", t, fpr, areas.aufpr), Line("FNR", t, fnr, areas.aufnr))
    at = {"test": balanced_threshold(pair), **fixed_thresholds(run.sets)}
    marks = {MARKS[name]: float(scale(float(np.clip(v, scale.low, scale.high)))) for name, v in at.items()}
    return Panel(f"{run.cell.row.path}, {ood.name}: AUTC {100 * areas.autc:.2f}", lines, marks)


def _fluctuation(runs: Sequence[ScoredCell]) -> Chart:
    """Where each row's best threshold lies in every group, and F1 there and at one threshold for all.

    Thresholds are less their mean, in deviations of the ID score (mean over groups); OOD is positive, and the OOD sets
    of a group are pooled.

    Reference: Re-benchmarking out-of-distribution detection in deep neural networks, OpenReview VkPuKTKH2Gx.
    """
    rows: dict[str, dict[str, ScoredCell]] = {}
    for run in runs:
        rows.setdefault(run.cell.row.path, {}).setdefault(run.group, run)
    groups = list(dict.fromkeys(group for of in rows.values() for group in of))
    lines, unable = list[tuple[Line, Line, Line]](), list[str]()
    for name, of in rows.items():
        try:
            lines.append(_moved(name, of, np.array([groups.index(group) for group in of], float)))
        except MetricError:
            unable.append(name)
    titles = (
        "best threshold less its mean, in deviations of the ID score",
        "F1 at the group's best threshold",
        "F1 at one threshold for all groups",
    )
    panels = tuple(Panel(title, panel) for title, panel in zip(titles, zip(*lines, strict=True), strict=False))
    axes, value = ("group", "deviations or F1"), "deviation or mean"
    return Chart("fluctuation", "thresholds over groups", axes, panels, value, tuple(groups), unable=tuple(unable))


def _moved(name: str, of: Mapping[str, ScoredCell], at: Floats) -> tuple[Line, Line, Line]:
    """A row's best thresholds, F1 there, and F1 at one threshold for all groups.

    Args:
        name: of the row.
        of: its run by group.
        at: (groups,) their positions.

    Raises:
        MetricError: a best threshold is infinite, or the ID scores have no deviation to tell it in.
    """
    pairs = {group: _pooled(run.sets) for group, run in of.items()}
    shared = shared_thresholds(pairs)
    if shared.relative_std is None:
        raise MetricError(f"{name}: the ID scores have no finite deviation — draw the others")
    best = np.array([shared.groups[group].threshold for group in pairs])
    unit = float(np.mean([np.std(ids) for ids, _ in pairs.values()]))
    printed = next((v for run in of.values() for (_, key), v in run.figures.items() if key == "pooled_f1"), None)
    best_f1, shared_f1 = (np.array([getattr(shared.groups[g], key) for g in pairs]) for key in ("own", "single"))
    return (
        Line(name, at, (best - best.mean()) / unit, shared.relative_std),
        Line(name, at, best_f1, float(best_f1.mean()), printed),
        Line(name, at, shared_f1, float(shared_f1.mean())),
    )


def _calibration(runs: Sequence[ScoredCell]) -> Chart:
    """The share of calibration folds whose FPR at α is at most x, and its law, for the first run of each row.

    Reference: Novello et al. 2024, arXiv 2403.11532.
    """
    panels, unable = dict[str, dict[str, tuple[Floats, rv_frozen]]](), dict[str, None]()
    for run in runs:
        ids = sides(run.sets)[0].scores
        try:
            rates = fold_rates(ids)
        except MetricError:
            unable[run.cell.row.path] = None
            continue
        rows = panels.setdefault(f"{run.benchmark}: {FOLDS} folds of {len(ids) // FOLDS} ID images", {})
        rows.setdefault(run.cell.row.path, rates)
    drawn = tuple(starmap(_folds, panels.items()))
    axes = (f"FPR at α = {ALPHA:g}", "share of folds")
    return Chart("calibration", "FPR over calibration folds", axes, drawn, "mean FPR", unable=tuple(unable))


def _folds(title: str, rows: Mapping[str, tuple[Floats, rv_frozen]]) -> Panel:
    share, (_, law) = np.arange(1, FOLDS + 1) / FOLDS, next(iter(rows.values()))
    x = np.linspace(0, max(rates[-1] for rates, _ in rows.values()), _STEPS)
    lines = [Line(name, rates, share, float(rates.mean())) for name, (rates, _) in rows.items()]
    return Panel(title, (*lines, Line("Beta({}, {})".format(*law.args), x, law.cdf(x), float(law.mean()))))


def _pooled(sets: Sequence[SetScores]) -> tuple[Floats, Floats]:
    ids, oods = sides(sets)
    return np.asarray(ids.scores, float), np.concatenate([np.asarray(ood.scores, float) for ood in oods])


KINDS: Mapping[str, Callable[[Sequence[ScoredCell]], Chart]] = {
    "oscr": _oscr,
    "oscr_selective": _oscr_selective,
    "conformal": _conformal,
    "corrections": _corrections,
    "autc": _autc,
    "fluctuation": _fluctuation,
    "calibration": _calibration,
}
