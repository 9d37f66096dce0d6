"""Ranking metrics of raw ID and OOD scores: two arrays, so that neither a label nor a sign can be swapped."""

from numpy.typing import ArrayLike

from openbench.metrics import curve_ranking
from openbench.metrics.curve import PooledCurve


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


def ranking(id_scores: ArrayLike, ood_scores: ArrayLike) -> dict[str, float]:
    """Return the whole ranking family under its keys, from one sort.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return curve_ranking.ranking(PooledCurve.of(id_scores, ood_scores))
