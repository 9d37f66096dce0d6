"""Metrics of a fixed threshold: the threshold curve (AUTC), global thresholds, and how far the best one moves."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from openbench.errors import MetricError, did_you_mean
from openbench.metrics.curve import Floats, PooledCurve, check_rate, least_count

Scaling = Literal["benchmark", "pair", "validation", "none"]
ScoreOrScores = TypeVar("ScoreOrScores", float, Floats)
SCALINGS: tuple[str, ...] = ("benchmark", "pair", "validation", "none")


@dataclass(frozen=True)
class Scale:
    """The affine map s → (s − low)/(high − low) that brings scores to [0, 1].

    Args:
        low: score mapped to 0.
        high: score mapped to 1.
    """

    low: float = 0.0
    high: float = 1.0

    @classmethod
    def of(cls, score_sets: Sequence[Floats]) -> "Scale":
        """Return the min–max map of the union of `score_sets`.

        Raises:
            MetricError: the union is constant or contains ±inf, so that no affine map to [0, 1] exists.
        """
        low = min(float(scores.min()) for scores in score_sets)
        high = max(float(scores.max()) for scores in score_sets)
        if not np.isfinite(high - low) or high == low:
            raise MetricError(
                f"AUTC scaling is undefined — the scores range from {low} to {high} — a finite, non-constant range is "
                "needed — drop the 'threshold' family or change the score"
            )
        return cls(low, high)

    def __call__(self, scores: ScoreOrScores) -> ScoreOrScores:
        """Map scores; those outside [low, high] land outside [0, 1]."""
        return (scores - self.low) / (self.high - self.low)


class ThresholdAreas(NamedTuple):
    """Areas over the threshold t ∈ [0, 1]; 0 is perfect."""

    autc: float
    aufpr: float
    aufnr: float


class ErrorRates(NamedTuple):
    """What one threshold does: an input is accepted iff its score is ≤ `threshold`."""

    fpr: float
    fnr: float
    threshold: float


class Stability(NamedTuple):
    """Spread of a threshold over OOD sets, in standard deviations of the ID score."""

    std: float
    range: float


def choose_scale(
    scaling: str, pair: Sequence[Floats], benchmark: Sequence[Floats], validation: Sequence[Floats]
) -> Scale:
    """Return the map that `scaling` names.

    Args:
        scaling: `benchmark` (one map for every OOD set, so that AUFPR is one number), `pair`, `validation`, or `none`
            for scores that are in [0, 1] already.
        pair: scores of this ID/OOD pair.
        benchmark: ID test scores and those of every OOD test set.
        validation: scores of the validation splits.

    Raises:
        MetricError: unknown name, no scores to scale by, or a range that admits no affine map.
    """
    if scaling not in SCALINGS:
        raise MetricError(
            f"AUTC scaling '{scaling}' not found{did_you_mean(scaling, SCALINGS)} — choose from {', '.join(SCALINGS)}"
        )
    if scaling == "none":
        return Scale()
    sources = {"pair": pair, "benchmark": benchmark, "validation": validation}[scaling]
    if not sources:
        raise MetricError(f"AUTC scaling '{scaling}' has no scores — no such split was given — choose another scaling")
    return Scale.of(sources)


def threshold_areas(id_scores: Floats, ood_scores: Floats, scale: Scale, weight: float = 0.5) -> ThresholdAreas:
    """Return AUFPR = ∫ P(a' > t) dt, AUFNR = ∫ P(b' ≤ t) dt and AUTC = w·AUFPR + (1 − w)·AUFNR over t ∈ [0, 1].

    For empirical distributions ∫₀¹ P(x > t) dt is the mean of x clipped to [0, 1]: exact, without a grid.

    Args:
        id_scores: (n,) a.
        ood_scores: (m,) b.
        scale: the map a → a'.
        weight: w; the paper's value is ½.

    Raises:
        MetricError: w outside [0, 1].

    Reference: Humblot-Renaux, Escalera, Moeslund, "Beyond AUROC & co. for evaluating out-of-distribution detection
        performance", CVPR Workshops 2023, arXiv 2306.14658. Differs from the authors' code in the one map per
        benchmark and in the exact integral; `threshold_areas_trapezoid` follows that code.
    """
    w = check_rate(weight, "AUTC weight")
    # Cutting before the affine map is cutting to [0, 1] after it.
    aufpr, mean_ood = (scale(float(np.clip(x, scale.low, scale.high).mean())) for x in (id_scores, ood_scores))
    aufnr = 1.0 - mean_ood
    return ThresholdAreas(w * aufpr + (1.0 - w) * aufnr, aufpr, aufnr)


def threshold_areas_trapezoid(curve: PooledCurve) -> ThresholdAreas:
    """Return the areas as the trapezoid rule over the ROC thresholds gives them, each pair min–max scaled.

    The steps of the two rates are cut diagonally, so the result depends on the sample spacing; for comparison with
    numbers made by the authors' code only.

    Args:
        curve: the pair.

    Raises:
        MetricError: constant or infinite scores.
    """
    t = Scale.of([curve.thresholds[1:]])(curve.thresholds[1:])
    # A ROC routine flags s ≥ t, which leaves the previous entry accepted.
    fpr = 1.0 - curve.id_accepted[:-1] / curve.n
    fnr = curve.ood_accepted[:-1] / curve.m
    aufpr, aufnr = float(np.trapezoid(fpr, t)), float(np.trapezoid(fnr, t))
    return ThresholdAreas(0.5 * (aufpr + aufnr), aufpr, aufnr)


def balanced_threshold(curve: PooledCurve) -> float:
    """Return the threshold where FPR and FNR are nearest to equal; of two equally near, the smaller worse rate wins.

    Args:
        curve: the pair.
    """
    n, m = curve.n, curve.m

    def errors(j: int) -> tuple[int, int]:
        """FPR·n·m and FNR·n·m: integers, so that equality is exact."""
        return (n - int(curve.id_accepted[j])) * m, int(curve.ood_accepted[j]) * n

    # FNR − FPR rises from −1 to 1 along the curve: the first entry where it is no longer negative, by bisection.
    after = bisect_left(range(curve.thresholds.size), 0, key=lambda j: errors(j)[1] - errors(j)[0])
    before = max(after - 1, 0)
    nearest = min((after, before), key=lambda j: (abs(errors(j)[1] - errors(j)[0]), max(errors(j))))
    return float(curve.thresholds[nearest])


def tnr_threshold(id_sorted: Floats, tnr: float = 0.95) -> float:
    """Return the smallest threshold that accepts at least `tnr` of ID.

    Args:
        id_sorted: (n,) ascending ID scores.
        tnr: share of ID to accept.

    Raises:
        MetricError: `tnr` outside (0, 1).
    """
    return float(id_sorted[least_count(check_rate(tnr, "TNR", closed=False), id_sorted.size) - 1])


def error_rates(curve: PooledCurve, threshold: float) -> ErrorRates:
    """Return FPR (ID flagged) and FNR (OOD accepted) at a threshold fixed beforehand.

    Args:
        curve: the pair.
        threshold: λ; accepted iff s ≤ λ.
    """
    fpr, fnr = curve.rates(curve.at(threshold))
    return ErrorRates(fpr, fnr, threshold)


def threshold_stability(thresholds: Sequence[float], id_scores: Floats) -> Stability:
    """Return population std and range of a method's thresholds over OOD sets, in units of the ID score's std.

    Args:
        thresholds: one (best-F1) threshold per OOD set.
        id_scores: (n,) ID test scores, which set the unit.

    Raises:
        MetricError: no threshold, or ID scores without a finite positive spread.
    """
    if not thresholds:
        raise MetricError("threshold stability needs at least one threshold — found none — pass one per OOD set")
    with np.errstate(invalid="ignore"):
        unit = float(np.std(id_scores))
    if not (np.isfinite(unit) and unit > 0 and np.isfinite(thresholds).all()):
        raise MetricError(
            f"threshold stability is undefined — the ID scores have standard deviation {unit} — finite thresholds and "
            "a positive, finite spread are needed — leave the number out for this score"
        )
    return Stability(float(np.std(thresholds)) / unit, float(np.ptp(thresholds)) / unit)
