"""Threshold metrics: areas over thresholds (AUTC), error rates at global ones, thresholds that groups share."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from openbench.errors import MetricError, not_found
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
            raise MetricError(f"AUTC scaling needs a finite, non-constant range of scores (found {low} to {high})")
        return cls(low, high)

    def __call__(self, scores: ScoreOrScores) -> ScoreOrScores:
        """Map scores; those outside [low, high] land outside [0, 1]."""
        return (scores - self.low) / (self.high - self.low)


class ThresholdAreas(NamedTuple):
    """Areas over the threshold t ∈ [0, 1]; 0 is perfect."""

    autc: float
    aufpr: float
    aufnr: float


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
            for scores in [0, 1].
        pair: scores of this ID/OOD pair.
        benchmark: ID test scores and those of every OOD test set.
        validation: scores of the validation splits.

    Raises:
        MetricError: an unknown name, no scores to scale by, or a range without an affine map.
    """
    if scaling not in SCALINGS:
        raise MetricError(not_found(f"AUTC scaling '{scaling}'", scaling, SCALINGS))
    if scaling == "none":
        return Scale()
    sources = {"pair": pair, "benchmark": benchmark, "validation": validation}[scaling]
    if not sources:
        raise MetricError(f"AUTC scaling '{scaling}' has no scores: no such split was given — choose another scaling")
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
        benchmark and in the exact integral.
    """
    w = check_rate(weight, "AUTC weight")
    # Cutting before the affine map is cutting to [0, 1] after it.
    aufpr, mean_ood = (scale(float(np.clip(x, scale.low, scale.high).mean())) for x in (id_scores, ood_scores))
    aufnr = 1.0 - mean_ood
    return ThresholdAreas(w * aufpr + (1.0 - w) * aufnr, aufpr, aufnr)


def balanced_threshold(curve: PooledCurve) -> float:
    """Return the threshold where FPR and FNR differ least; of two, the one whose larger rate is smaller.

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


def threshold_stability(thresholds: Sequence[float], id_scores: Floats) -> Stability:
    """Return the population std and the range of a method's thresholds over OOD sets, in units of the ID scores' std.

    Args:
        thresholds: one (best-F1) threshold per OOD set.
        id_scores: (n,) ID test scores, which set the unit.

    Raises:
        MetricError: no threshold, or ID scores without a finite positive spread.
    """
    if not thresholds:
        raise MetricError("threshold stability needs at least one threshold — pass one per OOD set")
    with np.errstate(invalid="ignore"):
        unit = float(np.std(id_scores))
    if not (np.isfinite(unit) and unit > 0 and np.isfinite(thresholds).all()):
        raise MetricError(f"threshold stability needs finite thresholds and a finite deviation > 0 (found {unit})")
    return Stability(float(np.std(thresholds)) / unit, float(np.ptp(thresholds)) / unit)


@dataclass(frozen=True)
class GroupF1:
    """F1 (OOD positive; flagged if s ≥ λ) of one group at thresholds chosen in different ways.

    Args:
        threshold: the group's best threshold.
        own: F1 there.
        others_threshold: the best for this group among the thresholds of the other groups; None without others.
        others: F1 there.
        single: F1 at the one threshold for all groups.
    """

    threshold: float
    own: float
    others_threshold: float | None
    others: float | None
    single: float


@dataclass(frozen=True)
class SharedThresholds:
    """The thresholds of several groups, and what sharing them costs.

    Args:
        groups: by name.
        single_threshold: the threshold with the largest mean F1 among those of all groups.
        variance: population variance of the groups' thresholds, in squared units of the score.
        std: its root.
        range: largest minus smallest.
        relative_std: the deviation in units of the mean, over groups, of the ID scores' deviation; None where that is
            zero or infinite.
    """

    groups: Mapping[str, GroupF1]
    single_threshold: float
    variance: float
    std: float
    range: float
    relative_std: float | None


def shared_thresholds(groups: Mapping[str, tuple[Floats, Floats]]) -> SharedThresholds:
    """Return how well thresholds transfer between groups that one method scored.

    The best-F1 thresholds of all groups form a common set, from which each group takes the best. Its own is in the set,
    so no F1 is lost; it is lost with the thresholds of the other groups (`others`) or one threshold for all (`single`).

    Args:
        groups: (n,) ID scores and (m,) OOD scores by the group's name.

    Raises:
        MetricError: no group, scores that cannot be ranked, or a best threshold that is infinite.

    Reference: Re-benchmarking Out-of-Distribution Detection in Deep Neural Networks, submitted to ICLR 2023 (OpenReview
        VkPuKTKH2Gx), section 3: the common set of its case 3, and thresholds that should vary little over groups.
        openbench adds the two stricter ways.
    """
    if not groups:
        raise MetricError("shared thresholds need at least one group — pass ID and OOD scores by name")
    curves = {name: PooledCurve.of(inside, outside) for name, (inside, outside) in groups.items()}
    best = {name: curve.best_f1.threshold for name, curve in curves.items()}
    infinite = [name for name, threshold in best.items() if not np.isfinite(threshold)]
    if infinite:
        raise MetricError(f"the best threshold of {', '.join(infinite[:3])} is infinite — leave the group out")
    thresholds = np.array(list(best.values()))
    table = np.stack([f1_at(curve, thresholds) for curve in curves.values()])  # (groups, thresholds)
    single = int(np.argmax(table.mean(axis=0)))
    with np.errstate(invalid="ignore"):  # infinite scores have no deviation
        units = [float(np.std(np.asarray(inside, dtype=np.float64))) for inside, _ in groups.values()]
    unit, variance = float(np.mean(units)), float(np.var(thresholds))
    return SharedThresholds(
        groups={name: _group(table[row], thresholds, row, single) for row, name in enumerate(groups)},
        single_threshold=float(thresholds[single]),
        variance=variance,
        std=variance**0.5,
        range=float(np.ptp(thresholds)),
        relative_std=variance**0.5 / unit if np.isfinite(unit) and unit > 0 else None,
    )


def f1_at(curve: PooledCurve, thresholds: Floats) -> Floats:
    """Return (t,) F1 of flagging s ≥ λ at given thresholds, OOD positive.

    Args:
        curve: the pair.
        thresholds: (t,) λ.
    """
    # Flagging s ≥ λ accepts what is below λ: the curve's last entry before it.
    last = np.searchsorted(curve.thresholds, np.asarray(thresholds, dtype=np.float64), side="left") - 1
    last = np.maximum(last, 0)
    hits = curve.m - curve.ood_accepted[last]
    alarms = curve.n - curve.id_accepted[last]
    return np.asarray(2.0 * hits / (hits + alarms + curve.m))


def _group(f1: Floats, thresholds: Floats, row: int, single: int) -> GroupF1:
    """Return the summary of a group's F1 by threshold; ties go to the first."""
    others: tuple[float | None, float | None] = (None, None)
    if rest := [at for at in range(f1.size) if at != row]:
        other = rest[int(np.argmax(f1[rest]))]
        others = float(thresholds[other]), float(f1[other])
    return GroupF1(float(thresholds[row]), float(f1[row]), *others, float(f1[single]))
