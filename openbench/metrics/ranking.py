"""Ranking metrics of raw ID and OOD scores: two arrays, so that neither a label nor a sign can be swapped."""

from numpy.typing import ArrayLike

from openbench.metrics import curve_ranking
from openbench.metrics.curve import PooledCurve, check_rate


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return P(b > a) + ½ P(b = a) for an ID score a and an OOD score b.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return curve_ranking.auroc(PooledCurve.of(id_scores, ood_scores))


def fpr95(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the smallest share of ID flagged among thresholds that flag ≥ 95 % of OOD (OOD positive).

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.

    Reference: Zhang et al., OpenOOD v1.5, arXiv 2306.09301.
    """
    return curve_ranking.fpr_at_tpr(PooledCurve.of(id_scores, ood_scores))


def fpr_at_tpr(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Return the smallest share of ID flagged among thresholds that flag at least `tpr` of OOD (OOD positive).

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.
        tpr: in [0, 1]; 0.95 in every published table.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN; or `tpr` is not a fraction.
    """
    rate = check_rate(tpr, "tpr")
    return curve_ranking.fpr_at_tpr(PooledCurve.of(id_scores, ood_scores), rate)


def fpr_at_tpr_id_positive(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Return the smallest share of OOD accepted among thresholds that accept at least `tpr` of ID (ID positive).

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.
        tpr: in [0, 1]; 0.95 in every published table.

    Raises:
        MetricError: as for `fpr_at_tpr`.
    """
    rate = check_rate(tpr, "tpr")
    return curve_ranking.fpr_at_tpr_id_positive(PooledCurve.of(id_scores, ood_scores), rate)


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the area under the precision–recall curve with OOD positive, by trapezoid as in OpenOOD's tables.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return ranking(id_scores, ood_scores)["aupr_out"]


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the area under the precision–recall curve with ID positive, by trapezoid as in OpenOOD's tables.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return ranking(id_scores, ood_scores)["aupr_in"]


def detection_error(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return min over thresholds of ½(FPR + FNR).

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return curve_ranking.detection_error(PooledCurve.of(id_scores, ood_scores))


def ranking(id_scores: ArrayLike, ood_scores: ArrayLike) -> dict[str, float]:
    """Return the whole ranking family under its keys, from one sort.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return curve_ranking.ranking(PooledCurve.of(id_scores, ood_scores))
