"""Conformal p-values of OOD scores, also under a known shift, and metrics with a guarantee of probability 1 − δ."""

from bisect import bisect_left

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError
from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.curve import Floats, PooledCurve, as_floats, as_scores, check_rate

_MAX_SIZE = 10_000_000  # of a calibration set


def p_values(calibration: ArrayLike, scores: ArrayLike, table: Floats | None = None) -> Floats:
    """Return (m,) p-values: marginal K/(n+1), or with a correction table the calibration-conditional b_K.

    K = 1 + #{i: s_i ≥ s(x)} is a rank in 1 … n+1. A marginal p-value is super-uniform on average over calibration sets;
    a corrected one is super-uniform given the calibration set, with probability ≥ 1 − δ.

    Args:
        calibration: (n,) ID scores.
        scores: (m,) scores to judge.
        table: (n+1,) from `correction_table(n, …)`.

    Raises:
        MetricError: invalid scores, or a table made for another n.

    Reference: Bates et al., Ann. Statist. 2023, arXiv 2104.08279.
    """
    ordered = np.sort(as_scores(calibration, "calibration scores"))
    # Whole ranks K = 1 + #{i: s_i ≥ s(x)}: a float p-value mapped back to its rank is off by one for one value in five.
    ranks = ordered.size + 1 - np.searchsorted(ordered, as_scores(scores, "scores"), side="left")
    return ranks / (ordered.size + 1) if table is None else _of_size(table, ordered.size)[ranks - 1]


def _of_size(table: Floats, n: int) -> Floats:
    if table.shape != (n + 1,):
        raise MetricError(f"the table was made for n = {table.size - 1}, but there are {n} calibration scores")
    return table


def conformal_fpr(flagged: ArrayLike, table: Floats) -> Floats:
    """Return the bound on the true FPR of a threshold that flags `flagged` of n calibration scores, b_{flagged+1}.

    The true rate is below the (flagged + 1)-th order statistic of n uniforms, hence below that bound, at all thresholds
    at once; with none flagged the bound is b_1 and not 0.

    Args:
        flagged: integers in 0 … n.
        table: (n+1,) from `correction_table(n, …)`.

    Raises:
        MetricError: counts outside 0 … n.

    Reference: Novello, Dalmau, Andéol, "Out-of-distribution detection should use conformal prediction (and
        vice-versa?)", 2024, arXiv 2403.11532.
    """
    counts = np.asarray(flagged)
    if counts.dtype.kind not in "iu" or counts.size == 0 or counts.min() < 0 or counts.max() >= table.size:
        raise MetricError(f"flagged counts must be integers in 0 … {table.size - 1} — found {flagged!r}")
    return np.asarray(table[counts], dtype=np.float64)


def conformal_auroc(curve: PooledCurve, table: Floats) -> float:
    """Return the area under TPR against conformal FPR; no area is credited left of b_1.

    Args:
        curve: the pair; its ID side is the calibration set.
        table: (n+1,) from `correction_table(n, …)`.

    Raises:
        MetricError: a table made for another n.
    """
    falling, total = _of_size(table, curve.n)[::-1], 0.0
    for a, b in curve.blocks():
        fpr, flagged = falling[a], curve.m - b
        total += float(np.dot(fpr[:-1] - fpr[1:], flagged[:-1] + flagged[1:]))
    return total / (2 * curve.m)


def conformal_fpr95(curve: PooledCurve, table: Floats, tpr: float = 0.95) -> float:
    """Return the bound on the FPR of the threshold that FPR@95 uses (OOD positive).

    Args:
        curve: the pair; its ID side is the calibration set.
        table: (n+1,) from `correction_table(n, …)`.
        tpr: 0.95.

    Raises:
        MetricError: a table made for another n.
    """
    flagged = round(curve.fpr_at_tpr(tpr) * curve.n)
    return float(_of_size(table, curve.n)[flagged])


def benjamini_hochberg(p: ArrayLike, level: float) -> NDArray[np.bool_]:
    """Return (m,) bool, the inputs flagged as OOD with false discovery rate ≤ `level`.

    With marginal conformal p-values, which are positively dependent as the procedure needs, this holds on average over
    calibration sets.

    Args:
        p: (m,) p-values in [0, 1].
        level: q in (0, 1).

    Raises:
        MetricError: p-values or level out of range.

    Reference: Benjamini and Hochberg, J. R. Statist. Soc. B 57 (1995); Bates et al. 2023, Theorem 2.
    """
    values = as_scores(p, "p-values")
    check_rate(level, "false discovery rate", closed=False)
    if values.min() < 0 or values.max() > 1:
        raise MetricError(f"p-values must lie in [0, 1] — found [{values.min()}, {values.max()}]")
    ordered = np.sort(values)
    passing = np.flatnonzero(ordered <= level * np.arange(1, values.size + 1) / values.size)
    return values <= (ordered[passing[-1]] if passing.size else -1.0)


def discoveries(curve: PooledCurve, calibration: ArrayLike, level: float) -> tuple[int, int]:
    """Return the numbers of ID and OOD scores of a pair that Benjamini–Hochberg flags when all are tested together.

    The selection is that of `benjamini_hochberg(p_values(calibration, scores), level)`. Marginal p-values take one of
    n+1 values, so the curve is read at n thresholds only.

    Args:
        curve: the pair.
        calibration: (n,) ID scores in neither side of the pair.
        level: q in (0, 1).

    Raises:
        MetricError: invalid calibration scores, or a level out of range.
    """
    check_rate(level, "false discovery rate", closed=False)
    falling = np.sort(as_scores(calibration, "calibration scores"))[::-1]
    # A score has K ≤ k iff it exceeds the k-th largest calibration score; p = 1, at K = n+1, is never selected.
    entries = np.searchsorted(curve.thresholds, falling, side="right") - 1
    tested = curve.n + curve.m
    rejected = tested - (curve.id_accepted[entries] + curve.ood_accepted[entries])
    # K/(n+1) ≤ q·rejected/tested, multiplied out; the factor keeps equality in spite of the rounding of a decimal q.
    ranks, bound = np.arange(1, falling.size + 1), level * (1 + 1e-12) * (rejected * (falling.size + 1))
    passing = np.flatnonzero((ranks * tested <= bound) & (rejected > 0))
    if not passing.size:
        return 0, 0
    last = entries[passing[-1]]
    return curve.n - int(curve.id_accepted[last]), curve.m - int(curve.ood_accepted[last])


def as_weights(weights: ArrayLike, n: int, where: str = "weights") -> Floats:
    """Return weights (n,), checked.

    Args:
        weights: (n,) density ratios, positive, up to a common factor.
        n: their number.
        where: their name in messages.

    Raises:
        MetricError: another number of them, or one that is not positive and finite.
    """
    w = as_floats(weights, where)
    if w.shape != (n,) or not np.all(np.isfinite(w)) or not np.all(w > 0):
        raise MetricError(f"{where} have shape {w.shape} — ({n},) positive, finite numbers expected, one per score")
    return w


def weighted_p_values(calibration: ArrayLike, scores: ArrayLike, weights: ArrayLike, own: ArrayLike) -> Floats:
    """Return (m,) p-values of inputs whose density is w(x) times that of the calibration images.

    p(x) = (w(x) + Σ_i w_i 1[s_i ≥ s(x)]) / (w(x) + Σ_i w_i); with equal weights the marginal p-value K/(n+1).

    Args:
        calibration: (n,) ID scores not used for training, larger = more OOD.
        scores: (m,) scores to judge.
        weights: (n,) w of the calibration images, up to a common factor.
        own: (m,) w of the inputs to judge, with the same factor.

    Raises:
        MetricError: invalid scores or weights.

    Reference: Tibshirani, Barber, Candès, Ramdas, NeurIPS 2019, arXiv 1904.06019; as p-values in Jin and Candès, 2023,
        arXiv 2307.09291, here without random tie-breaking, which can only make p larger.
    """
    known, judged = as_scores(calibration, "calibration scores"), as_scores(scores, "scores")
    w, w_own = as_weights(weights, known.size), as_weights(own, judged.size, "weights of the scores to judge")
    order = np.argsort(known, kind="stable")
    below = np.append(0.0, np.cumsum(w[order]))
    reached = below[-1] - below[np.searchsorted(known[order], judged, side="left")]
    return np.asarray((w_own + np.maximum(reached, 0.0)) / (w_own + below[-1]))


def marginal_size(alpha: float) -> int:
    """Return the smallest n for which a marginal p-value can be α or less: 1/(n+1) ≤ α.

    Raises:
        MetricError: α outside (0, 1).
    """
    return int(np.ceil(1.0 / check_rate(alpha, "α", closed=False) - 1e-9)) - 1


def conditional_size(alpha: float, delta: float, correction: str) -> int:
    """Return the smallest n for which a calibration-conditional p-value can be α or less: b_1 ≤ α.

    Args:
        alpha: in (0, 1).
        delta: δ in (0, 1).
        correction: one of CORRECTIONS.

    Raises:
        MetricError: a value out of range, or no n up to ten million.
    """
    low = high = max(marginal_size(alpha), 1)
    while correction_table(high, delta, correction)[0] > alpha:
        low, high = high + 1, high * 2
        if high > _MAX_SIZE:
            most = f"{_MAX_SIZE:,} scores"
            raise MetricError(f"'{correction}' does not reach α = {alpha:g} at δ = {delta:g} with {most} — enlarge α")
    return low + bisect_left(range(low, high), True, key=lambda n: correction_table(n, delta, correction)[0] <= alpha)
