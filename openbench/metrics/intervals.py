"""Confidence intervals: DeLong for AUROC and its paired difference, the bootstrap for other ranking metrics."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from openbench.errors import MetricError
from openbench.metrics.curve import (
    CURVE_METRICS,
    Counts,
    Floats,
    PooledCurve,
    as_scores,
    check_rate,
    least_count,
    placements,
)


class ConfidenceInterval(NamedTuple):
    """A two-sided confidence interval."""

    low: float
    high: float


def _placement_variances(curve: PooledCurve, area: float) -> tuple[float, float]:
    """Return the unbiased variances of the ID and the OOD placements, whose mean is `area`; 0 for a side of one."""
    n, m, on_id, on_ood = curve.n, curve.m, 0.0, 0.0
    for a, b in curve.blocks():
        # Twice the counts, centred: the divisions by 2m and 2n are left to the end.
        below_id = (b[1:] + b[:-1]) - 2.0 * m * (1.0 - area)
        below_ood = (a[1:] + a[:-1]) - 2.0 * n * area
        on_id += float(np.dot(np.square(below_id, out=below_id), a[1:] - a[:-1]))
        on_ood += float(np.dot(np.square(below_ood, out=below_ood), b[1:] - b[:-1]))
    return on_id / (2.0 * m) ** 2 / max(1, n - 1), on_ood / (2.0 * n) ** 2 / max(1, m - 1)


def delong_variance(curve: PooledCurve) -> float:
    """Return DeLong's variance of the AUROC: S(ID placements)/n + S(OOD placements)/m, from counts already sorted.

    Args:
        curve: the pair.

    Reference: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988); Sun and Xu, IEEE Signal Processing Letters 21
        (2014), for the O(n log n) form.
    """
    on_id, on_ood = _placement_variances(curve, curve.auroc())
    return on_id / curve.n + on_ood / curve.m


def group_delong_variance(curves: Sequence[PooledCurve]) -> float:
    """Return the variance of the mean AUROC over OOD sets that share one ID set.

    The sets are correlated through their ID scores: ID placements are averaged over the sets before the variance.

    Args:
        curves: one per OOD set, all with the same ID scores.

    Raises:
        MetricError: no curve, or ID sides of different size.
    """
    _check_shared(curves)
    n, on_id, from_ood = curves[0].n, np.zeros(curves[0].n), 0.0
    for curve in curves:
        # Per step of the curve, the share of OOD above, ties counted ½.
        of_id = 1.0 - (curve.ood_accepted[1:] + curve.ood_accepted[:-1]) / (2.0 * curve.m)
        on_id += np.repeat(of_id, np.diff(curve.id_accepted)) / len(curves)
        from_ood += _placement_variances(curve, curve.auroc())[1] / curve.m
    return float(np.var(on_id)) / max(1, n - 1) + from_ood / len(curves) ** 2


def _check_shared(curves: Sequence[PooledCurve]) -> None:
    if not curves or len({curve.n for curve in curves}) > 1:
        raise MetricError(f"intervals of groups need curves that share one ID set (found {[c.n for c in curves]})")


def _deviations(level: float) -> float:
    """How many standard deviations on either side an interval of a level spans."""
    return float(ndtri(0.5 + check_rate(level, "confidence level", closed=False) / 2))


def normal_interval(value: float, variance: float, level: float = 0.95) -> ConfidenceInterval:
    """Return value ± z·√variance, cut to [0, 1].

    Args:
        value: the estimate.
        variance: its sampling variance.
        level: coverage in (0, 1).

    Raises:
        MetricError: level out of range.
    """
    half = _deviations(level) * float(np.sqrt(variance))
    return ConfidenceInterval(max(0.0, value - half), min(1.0, value + half))


def delong(curve: PooledCurve, level: float = 0.95) -> ConfidenceInterval:
    """Return DeLong's interval for the AUROC.

    Args:
        curve: the pair.
        level: coverage in (0, 1).
    """
    return normal_interval(curve.auroc(), delong_variance(curve), level)


def _drawn_places(k: int, total: int, rng: np.random.Generator, replicates: int) -> Counts:
    """Return (r,) the place of a resample's k-th smallest score among the original ones: ⌊total·Beta(k, total+1−k)⌋."""
    return np.minimum((total * rng.beta(k, total + 1 - k, replicates)).astype(np.int64), total - 1)


def _drawn_fpr95(curves: Sequence[PooledCurve], rng: np.random.Generator, replicates: int) -> Floats:
    """Return (r,) bootstrap values of the mean FPR@95 (OOD positive) over sets that share the ID side.

    No sample is drawn: a set's threshold lies just below the k-th smallest OOD score of its resample. The number of
    resampled ID scores that the lowest threshold accepts is binomial, and so is, given that, the number up to the next.
    """
    n, below = curves[0].n, []
    for curve in curves:
        place = _drawn_places(curve.m - least_count(0.95, curve.m) + 1, curve.m, rng, replicates)
        below.append(curve.id_accepted[np.searchsorted(curve.ood_accepted, place, side="right") - 1])
    accepted, flagged, before = np.zeros(replicates, np.int64), np.zeros(replicates), np.zeros(replicates, np.int64)
    for at in np.sort(below, axis=0):
        accepted += rng.binomial(n - accepted, (at - before) / np.maximum(n - before, 1))
        flagged += (n - accepted) / n
        before = at
    return flagged / len(curves)


def _drawn_fpr95_id_positive(curves: Sequence[PooledCurve], rng: np.random.Generator, replicates: int) -> Floats:
    """Return (r,) the same with ID positive: one threshold for all sets, given which they vary independently."""
    n = curves[0].n
    place, accepted = _drawn_places(least_count(0.95, n), n, rng, replicates), np.zeros(replicates)
    for curve in curves:
        at = np.searchsorted(curve.id_accepted, place, side="right")
        accepted += rng.binomial(curve.m, curve.ood_accepted[at] / curve.m) / curve.m
    return accepted / len(curves)


# Keys whose bootstrap distribution is drawn directly, at a cost that does not depend on the number of scores.
_DRAWN: dict[str, Callable[[Sequence[PooledCurve], np.random.Generator, int], Floats]] = {
    "fpr95": _drawn_fpr95,
    "fpr95_id_positive": _drawn_fpr95_id_positive,
}


def bootstrap(
    curves: Sequence[PooledCurve], keys: Sequence[str], replicates: int = 1000, seed: int = 0, level: float = 0.95
) -> dict[str, ConfidenceInterval]:
    """Return percentile intervals of the mean over OOD sets of keys of CURVE_METRICS.

    Each replicate resamples the ID scores once for all sets, which correlates the sets, and the scores of each set
    separately. FPR@95 needs no resampling: it depends on an order statistic of one side and a count of the other, whose
    bootstrap distributions are known. The other keys share resamples.

    Args:
        curves: one per OOD set, all with the same ID scores.
        keys: of CURVE_METRICS.
        replicates: number of draws, ≥ 2.
        seed: of the generators; equal seeds give equal intervals of a key, whatever the other keys are.
        level: coverage in (0, 1).

    Raises:
        MetricError: no curve, ID sides of different size, fewer than 2 replicates, or level out of range.

    Reference: Efron, Ann. Statist. 7 (1979); the order statistic: Efron, The Jackknife, the Bootstrap and Other
        Resampling Plans (1982), section 10.
    """
    check_rate(level, "confidence level", closed=False)
    if replicates < 2:
        raise MetricError(f"the bootstrap needs at least 2 replicates (found {replicates}) — 1,000 is usual")
    _check_shared(curves)
    rest = [key for key in keys if key not in _DRAWN]
    values = _resampled_means(curves, rest, replicates, seed) if rest else {}
    for key in keys:
        if key in _DRAWN:
            values[key] = _DRAWN[key](curves, np.random.default_rng(seed), replicates)
    tails = [(1.0 - level) / 2, 1.0 - (1.0 - level) / 2]
    return {key: ConfidenceInterval(*map(float, np.quantile(values[key], tails))) for key in keys}


def _resampled_means(
    curves: Sequence[PooledCurve], keys: Sequence[str], replicates: int, seed: int
) -> dict[str, Floats]:
    """Return (r,) means over the sets of each key, the ID scores drawn once per replicate by their rank."""
    rng, means = np.random.default_rng(seed), {key: np.zeros(replicates) for key in keys}
    entries = [np.arange(curve.thresholds.size, dtype=np.int32) for curve in curves]
    of_id, of_ood = (
        [np.repeat(e[1:], np.diff(getattr(curve, side))) for e, curve in zip(entries, curves, strict=True)]
        for side in ("id_accepted", "ood_accepted")
    )
    for row in range(replicates):
        ranks = rng.integers(0, curves[0].n, curves[0].n, dtype=np.int32)
        for curve, e, ids, ood in zip(curves, entries, of_id, of_ood, strict=True):
            picks = (ids[ranks], ood[rng.integers(0, ood.size, ood.size, dtype=np.int32)])
            counts = (np.cumsum(np.bincount(p, minlength=e.size), dtype=np.int64) for p in picks)
            sample = PooledCurve(curve.thresholds, *counts)
            for key in keys:
                means[key][row] += CURVE_METRICS[key](sample) / len(curves)
    return means


class PairedDifference(NamedTuple):
    """The difference of two AUROCs, or of two means over OOD sets.

    `low` and `high` are the ends of its interval; `p` is two-sided, for equal AUROC.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float


def paired_delong(
    first: tuple[ArrayLike, Sequence[ArrayLike]], second: tuple[ArrayLike, Sequence[ArrayLike]], level: float = 0.95
) -> PairedDifference:
    """Return the difference of two AUROCs on the same images, or of two means over OOD sets that share the ID images.

    With the placements of an image under a score (of an ID image: the share u of OOD above it; of an OOD image: the
    share v of ID below it; ties count ½) and their differences d between the two scores,
    Var = S(mean over sets of d_u) / n + Σ over sets of S(d_v) / m_s / k², k sets, S(·) the unbiased variance;
    interval = difference ± z·√Var, p = 2Φ(−|difference| / √Var). For one set this is DeLong's comparison. The sets
    are correlated through the ID images that they share, which is why u is averaged before its variance is taken.
    Where no placement differs, Var is 0: p is then 1 for equal AUROCs and 0 otherwise.

    Args:
        first: scores (n,) of the ID images, and of each OOD set (m_s,); larger = more OOD.
        second: another score of the same images in the same order.
        level: coverage of the interval, in (0, 1).

    Raises:
        MetricError: no OOD set, sides of different size, NaN, or level out of range.

    Reference: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988), section 3; the mean over sets is a linear contrast
        of correlated areas, as there.
    """
    z = _deviations(level)
    sizes = [(np.size(ids), *map(np.size, oods)) for ids, oods in (first, second)]
    if sizes[0] != sizes[1] or not first[1]:
        found = f"{sizes[0]} and {sizes[1]} of them"
        raise MetricError(f"a paired comparison needs two scores of the same images (found {found})")
    ids = [as_scores(scores, "ID scores") for scores, _ in (first, second)]
    of_id, variance, sets = np.zeros(ids[0].size), 0.0, len(first[1])
    areas = np.zeros((sets, 2))
    for at in range(sets):
        (u_a, v_a), (u_b, v_b) = (
            placements(of, as_scores(oods[at], "OOD scores"))
            for of, (_, oods) in zip(ids, (first, second), strict=True)
        )
        areas[at] = v_a.mean(), v_b.mean()
        of_id += (u_a - u_b) / sets
        variance += _variance(v_a - v_b) / len(v_a) / sets**2
    variance += _variance(of_id) / len(of_id)
    one, other = (float(mean) for mean in areas.mean(axis=0))
    return _difference(one, other, variance, z)


def unpaired_delong(
    first: tuple[ArrayLike, Sequence[ArrayLike]], second: tuple[ArrayLike, Sequence[ArrayLike]], level: float = 0.95
) -> PairedDifference:
    """Return the difference of two AUROCs, or of two means over OOD sets, as if they were of independent samples.

    Var is the sum of both variances. Where both are of the same images in an unknown order, they are correlated: the
    interval is then too wide and p too large.

    Args:
        first: scores (n,) of the ID images, and of each OOD set (m_s,); larger = more OOD.
        second: another score.
        level: coverage of the interval, in (0, 1).

    Raises:
        MetricError: no OOD set, NaN, or level out of range.
    """
    sides = [[PooledCurve.of(ids, ood) for ood in oods] for ids, oods in (first, second)]
    one, other = (float(np.mean([curve.auroc() for curve in curves])) for curves in sides)
    variance = sum(group_delong_variance(curves) for curves in sides)
    z = _deviations(level)
    return _difference(one, other, variance, z)


def _difference(one: float, other: float, variance: float, z: float) -> PairedDifference:
    """The difference of two values with its interval of z deviations, and p."""
    difference, deviation = one - other, float(np.sqrt(variance))
    low, high = max(-1.0, difference - z * deviation), min(1.0, difference + z * deviation)
    p = 2.0 * float(ndtr(-abs(difference) / deviation)) if deviation else float(difference == 0)
    return PairedDifference(one, other, difference, low, high, p)


def _variance(values: Floats) -> float:
    """The unbiased variance; 0 for a single value."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0
