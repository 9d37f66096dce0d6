"""Ranking metrics read from a PooledCurve. OOD is positive unless the name says ID; `ranking.py` takes raw scores."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from openbench.metrics.curve import Counts, PooledCurve, least_count


class PrecisionRecallAreas(NamedTuple):
    """The two areas that go by the name of AUPR."""

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
    a, b = curve.id_accepted, curve.ood_accepted
    # Each OOD score beats the ID scores below it and half of those tied with it: Σ ΔB·(A before + A after) / 2.
    twice_wins = int(np.dot(b[1:] - b[:-1], a[1:] + a[:-1]))
    return twice_wins / (2 * curve.n * curve.m)


def _areas(tp: tuple[Counts, Counts], fp: tuple[Counts, Counts], positives: int) -> PrecisionRecallAreas:
    """Integrate precision over recall.

    Args:
        tp: true positives before and after each threshold that adds some.
        fp: false positives at the same two moments.
        positives: number of positives.
    """
    gain = (tp[1] - tp[0]) / positives
    after = tp[1] / (tp[1] + fp[1])
    flagged = tp[0] + fp[0]
    # Precision of an empty selection is 1: the curve starts at (recall 0, precision 1).
    before = np.where(flagged == 0, 1.0, tp[0] / np.maximum(flagged, 1))
    step = float(np.dot(gain, after))
    return PrecisionRecallAreas(0.5 * (step + float(np.dot(gain, before))), step)


def aupr_out(curve: PooledCurve) -> PrecisionRecallAreas:
    """Return the precision–recall areas with OOD positive.

    Thresholds that add only ID scores move vertically on the curve and enclose no area, hence are skipped.

    Args:
        curve: the pair.

    Reference: the trapezoid is what OpenOOD's tables use; Davis and Goadrich (ICML 2006) explain why the step-wise
        form (average precision) is the safer one with few or tied scores.
    """
    # Flagging runs downwards in λ: mirror the accepted counts.
    change = np.flatnonzero(curve.ood_accepted[1:] != curve.ood_accepted[:-1])
    tp, fp = curve.m - curve.ood_accepted, curve.n - curve.id_accepted
    return _areas((tp[change + 1], tp[change]), (fp[change + 1], fp[change]), curve.m)


def aupr_in(curve: PooledCurve) -> PrecisionRecallAreas:
    """Return the precision–recall areas with ID positive (score −s).

    Args:
        curve: the pair.
    """
    a, b = curve.id_accepted, curve.ood_accepted
    change = np.flatnonzero(a[1:] != a[:-1])
    return _areas((a[change], a[change + 1]), (b[change], b[change + 1]), curve.n)


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
    advantage = curve.id_accepted * m
    advantage -= curve.ood_accepted * n
    return 0.5 * (1.0 - int(advantage.max()) / (n * m))


def best_f1(curve: PooledCurve) -> BestF1:
    """Return F1, accuracy, precision and recall (OOD positive) where F1 is largest.

    Of several best thresholds the largest is taken: it flags fewest.

    Args:
        curve: the pair.
    """
    n, m = curve.n, curve.m
    # Flagging s ≥ thresholds[j + 1] leaves entry j accepted.
    tp = m - curve.ood_accepted[:-1]
    flagged = tp - curve.id_accepted[:-1]
    flagged += n
    f1 = 2.0 * tp / (flagged + m)
    j = f1.size - 1 - int(np.argmax(f1[::-1]))
    hit, alarms = int(tp[j]), int(flagged[j])
    accuracy = (hit + n - (alarms - hit)) / (n + m)
    return BestF1(float(f1[j]), accuracy, hit / alarms, hit / m, float(curve.thresholds[j + 1]))


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
