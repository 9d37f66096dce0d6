"""Conformal p-values of OOD scores, and ranking metrics that hold with probability 1 − δ over the calibration set."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, PooledCurve, as_scores, check_rate
from openbench.metrics.curve_ranking import fpr_at_tpr


def conformal_ranks(calibration: ArrayLike, scores: ArrayLike) -> NDArray[np.int64]:
    """Return (m,) integers K = 1 + #{i: s_i ≥ s(x)} in 1 … n+1; the marginal p-value is K/(n+1).

    Integers, because a floating-point p-value mapped back to its rank lands one off for one value in five.

    Args:
        calibration: (n,) ID scores not used for training, larger = more OOD.
        scores: (m,) scores to judge.

    Raises:
        MetricError: empty, NaN or not one-dimensional.
    """
    ordered = np.sort(as_scores(calibration, "calibration scores"))
    below = np.searchsorted(ordered, as_scores(scores, "scores"), side="left")
    return (ordered.size + 1 - below).astype(np.int64)


def p_values(calibration: ArrayLike, scores: ArrayLike, table: Floats | None = None) -> Floats:
    """Return (m,) p-values: marginal K/(n+1), or with a correction table the calibration-conditional b_K.

    A marginal p-value is super-uniform on average over calibration sets; a corrected one is super-uniform given the
    calibration set at hand, with probability ≥ 1 − δ.

    Args:
        calibration: (n,) ID scores.
        scores: (m,) scores to judge.
        table: (n+1,) from `correction_table(n, …)`.

    Raises:
        MetricError: invalid scores, or a table made for another n.

    Reference: Bates et al., Ann. Statist. 2023, arXiv 2104.08279.
    """
    ranks = conformal_ranks(calibration, scores)
    n = np.size(calibration)
    return ranks / (n + 1) if table is None else _checked(table, n)[ranks - 1]


def _checked(table: Floats, n: int) -> Floats:
    if table.shape != (n + 1,):
        raise MetricError(
            f"correction table does not fit — made for n = {table.size - 1}, but there are {n} calibration scores — "
            "build it with correction_table(n, …)"
        )
    return table


def conformal_fpr(flagged: ArrayLike, table: Floats) -> Floats:
    """Return the bound on the true FPR of a threshold that flags `flagged` of the n calibration scores.

    That many exceedances put the true rate below the (flagged + 1)-th order statistic of n uniforms, hence below
    b_{flagged+1}, at all thresholds at once; with none flagged the bound is b_1 and not 0.

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
        raise MetricError(f"flagged counts must be integers in 0 … {table.size - 1} — found {flagged!r} — pass counts")
    return np.asarray(table[counts], dtype=np.float64)


def conformal_auroc(curve: PooledCurve, table: Floats) -> float:
    """Return the area under TPR against conformal FPR; no area is credited left of b_1.

    Args:
        curve: the pair; its ID side is the calibration set.
        table: (n+1,) from `correction_table(n, …)`.

    Raises:
        MetricError: a table made for another n.
    """
    falling, total = _checked(table, curve.n)[::-1], 0.0
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
    flagged = round(fpr_at_tpr(curve, tpr) * curve.n)
    return float(_checked(table, curve.n)[flagged])


def benjamini_hochberg(p: ArrayLike, level: float) -> NDArray[np.bool_]:
    """Return (m,) bool, the inputs flagged as OOD with false discovery rate ≤ `level`.

    With marginal conformal p-values the guarantee holds on average over calibration sets (they are positively
    dependent in the sense the procedure needs).

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
        raise MetricError(f"p-values must lie in [0, 1] — found [{values.min()}, {values.max()}] — pass p-values")
    ordered = np.sort(values)
    passing = np.flatnonzero(ordered <= level * np.arange(1, values.size + 1) / values.size)
    return values <= (ordered[passing[-1]] if passing.size else -1.0)


def discoveries(curve: PooledCurve, calibration: ArrayLike, level: float) -> tuple[int, int]:
    """Return how many ID and OOD scores of a pair Benjamini–Hochberg flags when all are tested together.

    The same selection as `benjamini_hochberg(p_values(calibration, scores), level)`, from the sorted curve: marginal
    p-values take one of n+1 values, so the curve is read at n thresholds and no array of its length is made.

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
    # K/(n+1) ≤ q·rejected/tested, multiplied out. Storing a decimal q rounds it, and equality must survive that:
    # whole numbers up to a trillion differ by more.
    ranks, bound = np.arange(1, falling.size + 1), level * (1 + 1e-12) * (rejected * (falling.size + 1))
    passing = np.flatnonzero((ranks * tested <= bound) & (rejected > 0))
    if not passing.size:
        return 0, 0
    last = entries[passing[-1]]
    return curve.n - int(curve.id_accepted[last]), curve.m - int(curve.ood_accepted[last])
