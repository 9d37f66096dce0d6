"""One method's threshold over many groups of ID and OOD data: how far the best one moves, and what sharing it costs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, PooledCurve
from openbench.metrics.curve_ranking import best_f1


@dataclass(frozen=True)
class GroupF1:
    """F1 (OOD positive; flagged iff s ≥ λ) of one group at thresholds chosen in different ways.

    Args:
        threshold: the group's own best one.
        own: F1 there.
        pooled_threshold: the best for this group among those of all groups.
        pooled: F1 there.
        others_threshold: the best for this group among those of the other groups; None if there are none.
        others: F1 there.
        single: F1 at the one threshold that serves all groups.
    """

    threshold: float
    own: float
    pooled_threshold: float
    pooled: float
    others_threshold: float | None
    others: float | None
    single: float


@dataclass(frozen=True)
class SharedThresholds:
    """What `shared_thresholds` finds.

    Args:
        groups: by name, in the order given.
        single_threshold: of the thresholds of all groups the one with the largest mean F1.
        variance: population variance of the groups' own thresholds, in squared units of the score.
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
    """Return how well thresholds carry over between groups that one method scored.

    Each group's best-F1 threshold joins a common set, from which each group takes the best. Its own is in that set, so
    no F1 is lost. F1 can be lost with the other groups' thresholds only (`others`) or with one threshold for all
    (`single`).

    Args:
        groups: (n,) ID scores and (m,) OOD scores by the group's name.

    Raises:
        MetricError: no group, scores that cannot be ranked, or a best threshold that is infinite.

    Reference: Re-benchmarking Out-of-Distribution Detection in Deep Neural Networks, submitted to ICLR 2023 (OpenReview
        VkPuKTKH2Gx), section 3: the common set of its case 3, and thresholds that should vary little over groups.
        openbench adds the two stricter ways.
    """
    if not groups:
        raise MetricError("shared thresholds need at least one group — found none — pass ID and OOD scores by name")
    curves = {name: PooledCurve.of(inside, outside) for name, (inside, outside) in groups.items()}
    best = {name: best_f1(curve) for name, curve in curves.items()}
    own = np.array([found.threshold for found in best.values()])
    if not np.isfinite(own).all():
        endless = [name for name, found in best.items() if not np.isfinite(found.threshold)]
        raise MetricError(
            f"the best threshold of {', '.join(endless[:3])} is infinite — a spread needs finite ones — leave it out"
        )
    table = np.stack([f1_at(curve, own) for curve in curves.values()])  # (groups, thresholds)
    single = int(np.argmax(table.mean(axis=0)))
    with np.errstate(invalid="ignore"):  # the deviation of infinite scores is none
        units = [float(np.std(np.asarray(inside, dtype=np.float64))) for inside, _ in groups.values()]
    unit, variance = float(np.mean(units)), float(np.var(own))
    return SharedThresholds(
        groups={name: _group(table[row], own, row, single) for row, name in enumerate(groups)},
        single_threshold=float(own[single]),
        variance=variance,
        std=variance**0.5,
        range=float(np.ptp(own)),
        relative_std=variance**0.5 / unit if np.isfinite(unit) and unit > 0 else None,
    )


def f1_at(curve: PooledCurve, thresholds: Floats) -> Floats:
    """Return (t,) F1 of flagging s ≥ λ at given thresholds, OOD positive.

    Args:
        curve: the pair.
        thresholds: (t,) λ.
    """
    # Flagging s ≥ λ leaves accepted what is below λ: the curve's last entry before it.
    last = np.searchsorted(curve.thresholds, np.asarray(thresholds, dtype=np.float64), side="left") - 1
    last = np.maximum(last, 0)
    hits = curve.m - curve.ood_accepted[last]
    alarms = curve.n - curve.id_accepted[last]
    return np.asarray(2.0 * hits / (hits + alarms + curve.m))


def _group(f1: Floats, own: Floats, row: int, single: int) -> GroupF1:
    """Return the summary of one row of F1 by threshold; ties go to the group's own threshold, then to the first."""
    pooled = row if f1[row] >= f1.max() else int(np.argmax(f1))
    rest = np.delete(np.arange(own.size), row)
    other = None if rest.size == 0 else int(rest[np.argmax(f1[rest])])
    return GroupF1(
        threshold=float(own[row]),
        own=float(f1[row]),
        pooled_threshold=float(own[pooled]),
        pooled=float(f1[pooled]),
        others_threshold=None if other is None else float(own[other]),
        others=None if other is None else float(f1[other]),
        single=float(f1[single]),
    )
