"""Pictures of one run, from its scores: each function takes sets of scores and returns a matplotlib figure."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import MetricError
from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.conformal.p_values import conformal_fpr
from openbench.metrics.curve import PooledCurve
from openbench.metrics.options import MetricOptions
from openbench.metrics.rank_ranges import bars, mean_ranks
from openbench.metrics.selective.risk import SelectiveCurve, oscr, risk_coverage
from openbench.metrics.suite import fixed_thresholds
from openbench.metrics.threshold import Scale, balanced_threshold, choose_scale, threshold_areas
from openbench.report.style import COLOURS, INK, finish, lines, panels, thinned
from openbench.results.escape import plot as plain
from openbench.results.tables.views import GROUPS

_POINTS = 300  # of a drawn curve
_BINS = 50
_TAILS = (0.002, 0.998)  # quantiles of the scores that histograms show
_WIDE = (6.4, 3.4)
_GROUPS_OF_ID = 10  # of equal size, by score
_LEAST_FPR = 1e-3
_BINS_OF_CONFIDENCE = 15

Sets = Sequence[SetScores]


def roc(sets: Sets) -> Figure:
    """Return the ROC of every OOD set: TPR, OOD flagged, over FPR, ID flagged; larger scores are flagged."""
    ids, oods = sides(sets)
    figure, (axes,) = panels(1, _WIDE)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    for ood, style in zip(oods, lines(), strict=False):
        curve = PooledCurve.of(ids.scores, ood.scores)
        fpr, tpr = 1 - curve.id_accepted / curve.n, 1 - curve.ood_accepted / curve.m
        axes.plot(*thinned(fpr, tpr), **style, label=plain(f"{_called(ood)} {100 * curve.auroc():.1f}"))
    axes.set(xlabel="FPR (ID flagged)", ylabel="TPR (OOD flagged)", xlim=(0, 1), ylim=(0, 1.005))
    finish(axes, "lower right", "AUROC in %")
    return figure


def precision_recall(sets: Sets) -> Figure:
    """Return precision over recall of every OOD set, OOD counting as positive."""
    ids, oods = sides(sets)
    figure, (axes,) = panels(1, _WIDE)
    for ood, style in zip(oods, lines(), strict=False):
        curve = PooledCurve.of(ids.scores, ood.scores)
        hits = curve.m - curve.ood_accepted[:-1]
        precision = np.append(hits / (hits + curve.n - curve.id_accepted[:-1]), 1.0)
        label = plain(f"{_called(ood)} {100 * curve.aupr_out()[0]:.1f}")
        axes.plot(*thinned(np.append(hits / curve.m, 0.0), precision), **style, label=label)
    axes.set(xlabel="recall (OOD flagged)", ylabel="precision", xlim=(0, 1), ylim=(0, 1.005))
    finish(axes, "lower left", "AUPR-out in %")
    return figure


def histograms(sets: Sets) -> Figure:
    """Return a panel per OOD set with the densities of its scores and of ID test; tails are gathered at the ends."""
    ids, oods = sides(sets)
    figure, all_axes = panels(len(oods))
    for axes, ood in zip(all_axes, oods, strict=True):
        groups = {"ID test": np.asarray(ids.scores, float), _called(ood): np.asarray(ood.scores, float)}
        finite = np.concatenate([values[np.isfinite(values)] for values in groups.values()])
        edges = np.linspace(*_ends(finite), _BINS + 1)
        for (name, values), style in zip(groups.items(), lines(), strict=False):
            inside = np.clip(values, edges[0], edges[-1])
            density = np.histogram(inside, edges)[0] / (inside.size * np.diff(edges))
            axes.stairs(density, edges, fill=True, alpha=0.2, color=style["color"], linewidth=0)
            axes.stairs(density, edges, **style, label=plain(f"{name}, n = {values.size:,}"))
        axes.set_yscale("function", functions=(np.sqrt, np.square))  # a peak does not hide the rest
        axes.set(xlabel="score (larger = more OOD)", ylabel="density (root scale)", xlim=(edges[0], edges[-1]))
        finish(axes)
    return figure


def threshold_areas_of(sets: Sets, options: MetricOptions | None = None) -> Figure:
    """Return FPR and FNR over the threshold, a panel per OOD set: AUTC's picture.

    Scores are brought to [0, 1] as AUTC does; the shaded areas are AUFPR and AUFNR. Three thresholds are marked: that
    of equal rates on test data, that which accepts 95 % of ID test, and, with validation sets, that of equal rates on
    them.

    Reference: Humblot-Renaux, Escalera, Moeslund, CVPR Workshops 2023, arXiv 2306.14658, figure 1.
    """
    options = options or MetricOptions()
    ids, oods = sides(sets)
    fixed = fixed_thresholds(sets)
    every = [np.asarray(s.scores, float) for s in (ids, *oods)]
    validation = [np.asarray(s.scores, float) for s in sets if s.role in (Role.ID_VAL, Role.OOD_VAL)]
    figure, all_axes = panels(len(oods))
    for axes, ood, scores in zip(all_axes, oods, every[1:], strict=True):
        try:
            scale = choose_scale(options.autc_scaling, (every[0], scores), every, validation)
        except MetricError:
            axes.text(0.5, 0.5, "scores have no range", ha="center", transform=axes.transAxes)
            continue
        areas = threshold_areas(every[0], scores, scale, options.autc_weight)
        axes.set_title(plain(f"{_called(ood)}: AUTC {100 * areas.autc:.1f}"), fontsize=9)
        t = np.linspace(0, 1, _POINTS)
        rates = {
            f"FPR, area {100 * areas.aufpr:.1f}": _share_above(_scaled(every[0], scale), t),
            f"FNR, area {100 * areas.aufnr:.1f}": 1 - _share_above(_scaled(scores, scale), t),
        }
        for (name, rate), style in zip(rates.items(), lines(), strict=False):
            axes.plot(t, rate, **style, label=name)
            axes.fill_between(t, rate, alpha=0.15, color=style["color"], linewidth=0)
        _mark(axes, {"test": balanced_threshold(PooledCurve.of(every[0], scores)), **fixed}, scale)
        axes.set(xlabel="threshold (scaled score)", ylabel="rate", xlim=(0, 1), ylim=(0, 1.005))
        finish(axes, "center right")
    return figure


def selective(sets: Sets) -> Figure | None:
    """Return the risk–coverage curve of ID test, and CCR over FPR of every OOD set; None if nothing is classified.

    Reference: Geifman, El-Yaniv, NeurIPS 2017, arXiv 1705.08500; Dhamija et al., NeurIPS 2018, arXiv 1811.04110.
    """
    ids, oods = sides(sets)
    if ids.correct is None:
        return None
    losses = 1.0 - np.asarray(ids.correct, float)
    figure, (first, second) = panels(2, _WIDE, across=2)
    curve = SelectiveCurve.of(ids.scores, losses, oods[0].scores)
    first.plot(*thinned(*risk_coverage(curve)), **next(lines()))
    first.set(xlabel="coverage (ID accepted)", ylabel="risk (wrong among the accepted ID)", xlim=(0, 1))
    first.set_ylim(bottom=0)
    finish(first, None)
    for ood, style in zip(oods, lines(), strict=False):
        curve = SelectiveCurve.of(ids.scores, losses, ood.scores)
        right = (curve.pair.id_accepted - curve.cumulated[curve.pair.id_accepted]) / curve.pair.n
        accepted = curve.pair.ood_accepted / curve.pair.m
        second.plot(*thinned(accepted, right), **style, label=plain(f"{_called(ood)} {100 * oscr(curve):.1f}"))
    second.set_xscale("symlog", linthresh=1e-2)
    second.set(xlabel="OOD accepted", ylabel="CCR (ID accepted and right)", xlim=(0, 1), ylim=(0, 1.005))
    finish(second, "lower right", "OSCR in %")
    return figure


def conformal(sets: Sets, options: MetricOptions | None = None) -> Figure:
    """Return the ROC of every OOD set beside the FPR that holds with probability 1 − δ over the draw of ID test images.

    Args:
        sets: of a run.
        options: δ and the correction.

    Reference: Bates et al., Annals of Statistics 51 (2023), arXiv 2104.08279; Magesh et al., 2022, arXiv 2206.09522.
    """
    options = options or MetricOptions()
    ids, oods = sides(sets)
    table = correction_table(len(ids.scores), options.delta, options.correction)
    figure, all_axes = panels(len(oods))
    for axes, ood in zip(all_axes, oods, strict=True):
        curve = PooledCurve.of(ids.scores, ood.scores)
        flagged = curve.n - curve.id_accepted
        tpr, empirical, bound = 1 - curve.ood_accepted / curve.m, flagged / curve.n, conformal_fpr(flagged, table)
        styles = lines()
        measured, sure = np.maximum(empirical, _LEAST_FPR), np.maximum(bound, _LEAST_FPR)
        axes.plot(*thinned(measured, tpr), **next(styles), label="FPR measured")
        axes.plot(*thinned(sure, tpr), **next(styles), label="FPR guaranteed")
        few = slice(None, None, 1 + tpr.size // _POINTS)
        axes.fill_betweenx(tpr[few], measured[few], sure[few], color="0.6", alpha=0.2, linewidth=0)
        axes.set(xlabel="FPR", ylabel="TPR", xscale="log", xlim=(_LEAST_FPR, 1), ylim=(0, 1.005))
        axes.set_title(plain(_called(ood)), fontsize=9)
        finish(axes, "lower right")
    return figure


def accuracy_by_score(sets: Sets) -> Figure | None:
    """Return the accuracy in ten groups of equal size of the ID test images, from the lowest scores to the highest."""
    ids, _ = sides(sets)
    if ids.correct is None:
        return None
    order = np.argsort(ids.scores, kind="stable")
    parts = [part for part in np.array_split(np.asarray(ids.correct, float)[order], _GROUPS_OF_ID) if part.size]
    means = np.array([part.mean() for part in parts])
    error = 1.96 * np.sqrt(means * (1 - means) / [part.size for part in parts])
    figure, (axes,) = panels(1, _WIDE)
    at = (np.arange(len(parts)) + 0.5) / len(parts)
    axes.bar(at, means, width=0.9 / len(parts), yerr=error, color=next(lines())["color"], alpha=0.8, ecolor=INK)
    axes.set(xlabel="ID test images by score, lowest first (share)", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    finish(axes, None)
    return figure


def reliability(sets: Sets) -> Figure | None:
    """Return accuracy over confidence of ID test, in bins of equal width; None without class probabilities.

    The confidence is the largest probability. ECE is the mean over images of |accuracy − confidence| of their bin.

    Reference: Guo, Pleiss, Sun, Weinberger, ICML 2017, arXiv 1706.04599, figure 1, with 15 bins as there.
    """
    ids, _ = sides(sets)
    if ids.correct is None or ids.probabilities is None:
        return None
    confidence, right = np.asarray(ids.probabilities, float).max(axis=1), np.asarray(ids.correct, float)
    # A confidence at an edge belongs to the bin below it, as in the paper.
    bins = np.clip(np.ceil(confidence * _BINS_OF_CONFIDENCE).astype(int) - 1, 0, _BINS_OF_CONFIDENCE - 1)
    counts = np.bincount(bins, minlength=_BINS_OF_CONFIDENCE)
    filled = np.flatnonzero(counts)
    accuracy, mean = (
        np.bincount(bins, weights, _BINS_OF_CONFIDENCE)[filled] / counts[filled] for weights in (right, confidence)
    )
    ece = float((counts[filled] * np.abs(accuracy - mean)).sum() / counts.sum())
    figure, (first, second) = panels(2, _WIDE, across=2)
    first.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    first.plot(mean, accuracy, marker="o", markersize=4, **next(lines()), label=f"ECE {100 * ece:.2f}")
    first.set(xlabel="confidence (mean of the bin)", ylabel="accuracy", xlim=(0, 1.01), ylim=(0, 1.01))
    finish(first, "upper left")
    shares, colour = counts[filled] / counts.sum(), next(lines())["color"]
    second.bar((filled + 0.5) / _BINS_OF_CONFIDENCE, shares, 0.9 / _BINS_OF_CONFIDENCE, color=colour)
    second.set(xlabel="confidence", ylabel="share of the ID test images", xlim=(0, 1.01))
    finish(second, None)
    return figure


def roc_of_runs(runs: Mapping[str, Sets]) -> Figure:
    """Return a panel per OOD set with the ROC of each run.

    Args:
        runs: name → its sets, the same for all.
    """
    _, oods = sides(next(iter(runs.values())))
    figure, all_axes = panels(len(oods))
    for at, (axes, ood) in enumerate(zip(all_axes, oods, strict=True)):
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
        for (name, sets), style in zip(runs.items(), lines(), strict=False):
            ids, own = sides(sets)
            curve = PooledCurve.of(ids.scores, own[at].scores)
            fpr, tpr = 1 - curve.id_accepted / curve.n, 1 - curve.ood_accepted / curve.m
            axes.plot(*thinned(fpr, tpr), **style, label=plain(f"{name} {100 * curve.auroc():.1f}"))
        axes.set(xlabel="FPR (ID flagged)", ylabel="TPR (OOD flagged)", xlim=(0, 1), ylim=(0, 1.005))
        axes.set_title(plain(_called(ood)), fontsize=9)
        finish(axes, "lower right", "AUROC in %")
    return figure


def sides(sets: Sets) -> tuple[SetScores, list[SetScores]]:
    """Return the scores of ID test, and those of near and far sets in the order of tables.

    Raises:
        MetricError: there is no ID test set or no OOD set, or more than one ID test set.
    """
    ids = [s for s in sets if s.role == Role.ID_TEST]
    oods = sorted((s for s in sets if s.role in GROUPS), key=lambda s: (GROUPS.index(s.role), s.name))
    if len(ids) != 1 or not oods:
        raise MetricError(
            f"pictures need one ID test set and OOD sets — found {len(ids)} and {len(oods)} — give the scores of a run"
        )
    return ids[0], oods


def _called(ood: SetScores) -> str:
    return f"{ood.name} ({ood.role})"


def _scaled(values: np.ndarray, scale: Scale) -> np.ndarray:
    return np.asarray(scale(np.clip(values, scale.low, scale.high)))


def _share_above(values: np.ndarray, t: np.ndarray) -> np.ndarray:
    return np.asarray(1 - np.searchsorted(np.sort(values), t, side="right") / values.size)


def _mark(axes: Axes, thresholds: Mapping[str, float], scale: Scale) -> None:
    said = {"test": "equal rates, test", "95tnr": "95 % of ID", "val": "equal rates, validation"}
    for height, (name, value) in zip((0.97, 0.88, 0.79), thresholds.items(), strict=False):
        if np.isfinite(value):
            at = float(scale(float(np.clip(value, scale.low, scale.high))))
            axes.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (2, 2)))
            side = "left" if at < 0.6 else "right"
            axes.text(at, height, f" {said[name]} ", fontsize=6.5, ha=side, va="top", color=INK)


def _ends(values: np.ndarray) -> tuple[float, float]:
    if not values.size:
        return 0.0, 1.0
    low, high = (float(np.quantile(values, q)) for q in _TAILS)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


_MOST = 30  # methods in a picture
_LINE = 0.22  # inches
_LABEL = 48  # characters


def critical_difference(names: Sequence[str], values: ArrayLike, of: str, level: float = 0.95) -> Figure:
    """Return a picture of mean ranks, best on top; a bar joins methods within the critical difference of one another.

    Of many methods the best thirty are drawn; ranks and the difference are those of all.

    Args:
        names: of the methods.
        values: (k, N) larger = better, a column per set.
        of: what is ranked, e.g. `AUROC`.
        level: one minus the family-wise error rate.

    Raises:
        MetricError: fewer than two methods or sets.

    Reference: Demšar, Journal of Machine Learning Research 7 (2006), figure 1, with the methods below one another.
    """
    found = mean_ranks(values, level)
    shown = [int(at) for at in np.argsort(found.ranks, kind="stable")][:_MOST]
    places = {method: place for place, method in enumerate(shown)}
    figure, (axes,) = panels(1, (6.4, 1.3 + _LINE * len(shown)))
    ranks = found.ranks[shown]
    axes.plot(ranks, range(len(shown)), "o", color=COLOURS[0], markersize=4)
    joined: list[list[int]] = []
    for group in bars(found):
        inside = [places[method] for method in group if method in places]
        if len(inside) > 1 and not (joined and set(inside) <= set(joined[-1])):
            joined.append(inside)
    right = float(ranks.max()) + 0.5
    step = 0.03 * (float(ranks.max() - ranks.min()) + 1)
    for number, group in enumerate(joined):
        axes.plot([right + step * number] * 2, [group[0] - 0.2, group[-1] + 0.2], color=COLOURS[1], linewidth=2.5)
    most = "" if len(shown) == len(found.ranks) else f", the best {len(shown)} of {len(found.ranks)}"
    friedman = f"Friedman p = {found.p:.2g}" if found.p >= 1e-4 else "Friedman p < 0.0001"
    axes.set_title(
        plain(f"{of} over {found.sets} sets{most}: critical difference {found.critical:.2f}, {friedman}"), fontsize=8.5
    )
    short = [f"{name[: _LABEL - 1]}…" if len(name) > _LABEL else name for name in names]
    axes.set_yticks(range(len(shown)), [plain(short[method]) for method in shown], fontsize=7.5, color=INK)
    axes.set(xlabel="mean rank (1 = best)", ylim=(len(shown) - 0.5, -0.5))
    finish(axes, None)
    return figure
