"""Ranking metrics read from a PooledCurve. OOD is positive unless the name says ID; `ranking.py` takes raw scores."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from openbench.metrics.curve import Counts, Floats, PooledCurve, least_count


class PrecisionRecallAreas(NamedTuple):
    """The two areas that are called AUPR."""

    trapezoid: float
    average_precision: float


class BestF1(NamedTuple):
    """The operating point of largest F1; an input is flagged iff its score is ≥ `threshold`."""

    f1: float
    accuracy: float
    precision: float
    recall: float
    threshold: float


def auroc(curve: PooledCurve) -> float:
    """Return P(b > a) + ½ P(b = a) for an ID score a and an OOD score b; an exact count, divided once.

    Args:
        curve: the pair.
    """
    # Each OOD score beats the ID scores below it and half of those tied with it: Σ ΔB·(A before + A after) / 2.
    twice_wins = sum(int(np.dot(b[1:] - b[:-1], a[1:] + a[:-1])) for a, b in curve.blocks())
    return twice_wins / (2 * curve.n * curve.m)


def _precision(hits: Counts, selected: Counts) -> Floats:
    """Return hits / selected; an empty selection has precision 1, as the curve starts at (recall 0, precision 1)."""
    precision = np.asarray(hits / np.maximum(selected, 1))
    if not (selected[0] and selected[-1]):  # the counts are monotone: an empty selection is at an end
        precision[selected == 0] = 1.0
    return precision


def aupr_out(curve: PooledCurve) -> PrecisionRecallAreas:
    """Return the precision–recall areas with OOD positive.

    Args:
        curve: the pair.

    Reference: the trapezoid is what OpenOOD's tables use; Davis and Goadrich (ICML 2006) explain why the step-wise
        form (average precision) is the safer one with few or tied scores.
    """
    fewer = more = 0.0
    for a, b in curve.blocks():
        flagged = curve.m - b
        precision = _precision(flagged, flagged + (curve.n - a))
        gain = (b[1:] - b[:-1]).astype(np.float64)
        # Flagging runs downwards in λ: a step of recall ends at the lower entry.
        more += float(np.dot(gain, precision[:-1]))
        fewer += float(np.dot(gain, precision[1:]))
    return PrecisionRecallAreas(0.5 * (more + fewer) / curve.m, more / curve.m)


def aupr_in(curve: PooledCurve) -> PrecisionRecallAreas:
    """Return the precision–recall areas with ID positive (score −s).

    Args:
        curve: the pair.
    """
    fewer = more = 0.0
    for a, b in curve.blocks():
        precision = _precision(a, a + b)
        gain = (a[1:] - a[:-1]).astype(np.float64)
        more += float(np.dot(gain, precision[1:]))
        fewer += float(np.dot(gain, precision[:-1]))
    return PrecisionRecallAreas(0.5 * (more + fewer) / curve.n, more / curve.n)


def fpr_at_tpr(curve: PooledCurve, tpr: float = 0.95) -> float:
    """Return the smallest share of ID flagged among thresholds that flag at least `tpr` of OOD.

    Args:
        curve: the pair.
        tpr: 0.95 in every published table.

    Reference: Zhang et al., OpenOOD v1.5, arXiv 2306.09301 (OOD positive).
    """
    may_accept = curve.m - least_count(tpr, curve.m)
    last = int(np.searchsorted(curve.ood_accepted, may_accept, side="right")) - 1
    return curve.rates(last)[0]


def fpr_at_tpr_id_positive(curve: PooledCurve, tpr: float = 0.95) -> float:
    """Return the smallest share of OOD accepted among thresholds that accept at least `tpr` of ID.

    Args:
        curve: the pair.
        tpr: 0.95 in every published table.

    Reference: Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136, and most papers before 2023.
    """
    first = int(np.searchsorted(curve.id_accepted, least_count(tpr, curve.n), side="left"))
    return curve.rates(first)[1]


def detection_error(curve: PooledCurve) -> float:
    """Return min over λ of ½(FPR + FNR).

    Args:
        curve: the pair.
    """
    n, m = curve.n, curve.m
    # ½(1 − A/n + B/m) is smallest where m·A − n·B is largest; integers keep ties exact.
    advantage = max(int((a * m - b * n).max()) for a, b in curve.blocks())
    return 0.5 * (1.0 - advantage / (n * m))


def best_f1(curve: PooledCurve) -> BestF1:
    """Return F1, accuracy, precision and recall (OOD positive) where F1 is largest.

    Of several best thresholds the largest is taken: it flags fewest.

    Args:
        curve: the pair.
    """
    n, m = curve.n, curve.m
    best, at, start = -1.0, 0, 0
    for a, b in curve.blocks():
        # Flagging s ≥ thresholds[j + 1] leaves entry j accepted; F1 = 2·TP / (flagged + m).
        hits = m - b[:-1]
        f1 = hits / (hits + (n + m) - a[:-1])
        last = f1.size - 1 - int(np.argmax(f1[::-1]))
        if f1[last] >= best:
            best, at = float(f1[last]), start + last
        start += f1.size
    hit = m - int(curve.ood_accepted[at])
    alarms = n - int(curve.id_accepted[at])
    return BestF1(
        f1=2.0 * best,
        accuracy=(hit + n - alarms) / (n + m),
        precision=hit / (hit + alarms),
        recall=hit / m,
        threshold=float(curve.thresholds[at + 1]),
    )


def ranking(curve: PooledCurve) -> dict[str, float]:
    """Return the whole family under its keys.

    Args:
        curve: the pair.
    """
    out, into, best = aupr_out(curve), aupr_in(curve), best_f1(curve)
    return {
        "auroc": auroc(curve),
        "aupr_in": into.trapezoid,
        "aupr_out": out.trapezoid,
        "ap_in": into.average_precision,
        "ap_out": out.average_precision,
        "fpr95": fpr_at_tpr(curve),
        "fpr95_id_positive": fpr_at_tpr_id_positive(curve),
        "detection_error": detection_error(curve),
        "f1": best.f1,
        "accuracy": best.accuracy,
        "precision": best.precision,
        "recall": best.recall,
        "f1_threshold": best.threshold,
    }


CURVE_METRICS: dict[str, Callable[[PooledCurve], float]] = {
    "auroc": auroc,
    "aupr_in": lambda curve: aupr_in(curve).trapezoid,
    "aupr_out": lambda curve: aupr_out(curve).trapezoid,
    "ap_in": lambda curve: aupr_in(curve).average_precision,
    "ap_out": lambda curve: aupr_out(curve).average_precision,
    "fpr95": fpr_at_tpr,
    "fpr95_id_positive": fpr_at_tpr_id_positive,
    "detection_error": detection_error,
    "f1": lambda curve: best_f1(curve).f1,
    "accuracy": lambda curve: best_f1(curve).accuracy,
    "precision": lambda curve: best_f1(curve).precision,
    "recall": lambda curve: best_f1(curve).recall,
}
