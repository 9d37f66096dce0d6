"""Double scores s = s_r + μ·s_g, where s_r finds misclassified ID inputs and s_g separates OOD inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, PooledCurve, as_scores, check_rate, least_count
from openbench.metrics.selective import risk

DEFAULT_MUS: tuple[float, ...] = (0.0, *(float(mu) for mu in np.logspace(-3, 3, 121)))  # 20 per decade


class ScorePair(NamedTuple):
    """The two scores of one set, each (n,), larger = to be rejected sooner."""

    risk: ArrayLike
    separation: ArrayLike


@dataclass(frozen=True)
class Standard:
    """Means and standard deviations on ID validation, which bring the two scores to one unit."""

    risk_mean: float = 0.0
    risk_std: float = 1.0
    separation_mean: float = 0.0
    separation_std: float = 1.0

    @classmethod
    def of(cls, id_val: ScorePair) -> "Standard":
        """Return the standard of two scores on ID validation.

        Raises:
            MetricError: a score that is constant or infinite there.
        """
        moments: list[float] = []
        for name, values in zip(ScorePair._fields, id_val, strict=True):
            scores = as_scores(values, f"{name} scores")
            with np.errstate(invalid="ignore"):
                mean, std = float(scores.mean()), float(scores.std())
            if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
                raise MetricError(f"{name} score cannot be standardised: mean {mean}, deviation {std} on ID validation")
            moments += [mean, std]
        return cls(*moments)


def combine(pair: ScorePair, standard: Standard, mu: float) -> Floats:
    """Return (n,) (r − mean_r)/std_r + μ·(g − mean_g)/std_g.

    Raises:
        MetricError: invalid or unequally long scores, or a negative or infinite μ.
    """
    r, g = as_scores(pair.risk, "risk scores"), as_scores(pair.separation, "separation scores")
    if r.size != g.size:
        raise MetricError(f"the two scores differ in length ({r.size} and {g.size}) — score the same images")
    if not (np.isfinite(mu) and mu >= 0):
        raise MetricError(f"μ must be finite and ≥ 0 — found {mu}")
    s = (r - standard.risk_mean) / standard.risk_std
    # 0·∞ is not a number; at μ = 0 the second score is left out.
    return s + mu * ((g - standard.separation_mean) / standard.separation_std) if mu > 0 else s


class TwoThresholds(NamedTuple):
    """What two scores can do with a threshold each: the best F1, and the area under the least risk over coverage."""

    ds_f1: float
    ds_aurc: float


def two_thresholds(sets: tuple[ScorePair, ScorePair], losses: ArrayLike, most: int = 1000) -> TwoThresholds:
    """Return DS-F1 and DS-AURC: an input is accepted if both its scores are at most their thresholds.

    With T correct ID inputs accepted among A accepted ones, precision T/A and recall T/n, DS-F1 = max 2T/(A + n), and
    DS-AURC = (1/n) Σ_k of the least 1 − T/A where exactly k ID inputs are accepted; where ties leave no such
    thresholds, the next larger k counts. The same score twice gives F1 and area of a single score.

    Args:
        sets: both scores on the ID and on the OOD data.
        losses: (n,) 1 − correct.
        most: thresholds of each score: all values that occur, or if these are more, so many of equal steps in rank.

    Raises:
        MetricError: invalid scores, or losses of another length.

    Reference: Li et al., "From misclassifications to outliers: joint reliability assessment in classification", 2026,
        arXiv 2603.03903. Their code has 1,001 equal steps of the scaled scores and 100 bins of coverage; here a
        monotone map of a score changes nothing, and coverage has n steps.
    """
    ids, ood = sets
    if np.size(losses) != np.size(ids.risk):
        raise MetricError(f"{np.size(losses)} losses for {np.size(ids.risk)} ID images — pass one per image")
    places, n = [], np.size(ids.risk)
    for name, values in zip(ScorePair._fields, zip(ids, ood, strict=True), strict=True):
        every = as_scores(np.concatenate([*map(np.ravel, values)]), f"{name} scores")
        steps = np.unique(every)
        if steps.size > most:
            steps = np.unique(np.sort(every)[np.linspace(0, every.size - 1, most).round().astype(np.int64)])
        places.append((np.searchsorted(steps, every), steps.size))
    (first, rows), (second, columns) = places
    at = first * columns + second

    def accepted(of: slice, weights: ArrayLike | None = None) -> Floats:
        cells = np.bincount(at[of], weights, rows * columns).reshape(rows, columns)
        return np.asarray(cells.cumsum(axis=0).cumsum(axis=1), np.float64).ravel()

    right, of_id = accepted(slice(n), 1.0 - np.asarray(losses, np.float64)), accepted(slice(n))
    both = accepted(slice(None))
    least = np.full(n + 1, np.inf)
    np.minimum.at(least, of_id.astype(np.int64), 1.0 - right / np.maximum(both, 1.0))
    known = np.flatnonzero(np.isfinite(least[1:])) + 1
    filled = least[known[np.searchsorted(known, np.arange(1, n + 1))]]
    return TwoThresholds(float((2.0 * right / (both + n)).max()), float(filled.mean()))


class Weighing(NamedTuple):
    """The AUROC of one weight μ, and the least risk with its threshold, or `unable`."""

    mu: float
    auroc: float
    point: risk.OperatingPoint | risk.Unable


def weighings(
    sets: tuple[ScorePair, ScorePair],
    losses: ArrayLike,
    standard: Standard,
    constraint: risk.Constraint,
    mus: Sequence[float],
) -> list[Weighing]:
    """Return the least selective risk over all thresholds for each μ.

    Args:
        sets: both scores on the ID and on the OOD data.
        losses: (n,) e_i of the ID side, usually 1 − correct.
        standard: the unit of each score.
        constraint: `TprFpr` or `PrecisionRecall`.
        mus: the weights, in these units.

    Raises:
        MetricError: invalid scores or losses, or a weight that is negative or infinite.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, where (μ, λ) are chosen on test data.
    """
    curves = ((mu, _weighed(sets, losses, standard, mu)) for mu in mus)
    return [Weighing(mu, curve.pair.auroc(), risk.least_risk(curve, constraint)) for mu, curve in curves]


def best_weighing(candidates: Sequence[Weighing]) -> Weighing | risk.Unable:
    """Return the weighing of least risk, or `unable` if none is feasible.

    Ties go to the largest AUROC, then to the smallest μ: an accurate classifier makes no mistake among the most certain
    inputs, so its risk is 0 for many weights.
    """
    feasible = [(w.point.value, -w.auroc, w.mu, w) for w in candidates if not isinstance(w.point, str)]
    return min(feasible)[-1] if feasible else risk.UNABLE


def common_constraint(sets: tuple[ScorePair, ScorePair], tpr: float) -> risk.TprFpr:
    """Return φ ≥ tpr with the larger share of OOD that either score alone accepts there as ρ_max: both can meet it.

    Args:
        sets: both scores on the ID and on the OOD data.
        tpr: φ_min.

    Raises:
        MetricError: invalid scores, or a rate outside [0, 1].

    Reference: Franc, Prusa, Paplham 2023, Table 2, where the scores are those of all methods compared.
    """
    check_rate(tpr, "minimal TPR")
    curves = [PooledCurve.of(ids, ood) for ids, ood in zip(*sets, strict=True)]
    return risk.TprFpr(tpr, max(curve.fpr_at_tpr_id_positive(tpr) for curve in curves))


@dataclass(frozen=True, eq=False)
class Envelope:
    """The best values over the weights μ of a double score, ID positive; μ may differ from point to point.

    Args:
        fpr: (n,) least share of OOD accepted where at least k of n ID inputs are, k = 1 … n.
        auroc: area above the least FPR over TPR; ties are accepted in part, as for a single score.
        oscr_selective: mean over FPR of the largest accuracy among the accepted ID inputs.
    """

    fpr: Floats
    auroc: float
    oscr_selective: float

    def fpr_at_tpr(self, tpr: float) -> float:
        """Return the least share of OOD accepted where at least `tpr` of ID is."""
        return float(self.fpr[max(1, least_count(check_rate(tpr, "minimal TPR"), self.fpr.size)) - 1])


def envelope(
    sets: tuple[ScorePair, ScorePair], losses: ArrayLike, standard: Standard, mus: Sequence[float] = DEFAULT_MUS
) -> Envelope:
    """Return the envelope over weights of the ROC and accuracy curves of a double score.

    With a single weight its areas are AUROC and selective OSCR of that score. A fixed rule attains at most one point of
    a curve.

    Args:
        sets: both scores on the ID and on the OOD data.
        losses: (n,) 0/1 e_i of the ID side, 1 − correct.
        standard: the unit of each score.
        mus: the weights, in these units.

    Raises:
        MetricError: invalid scores or losses, or a weight that is negative or infinite.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199: AUROC and OSCR of double scores in its table 2.
    """
    curves = [_curves(_weighed(sets, losses, standard, mu)) for mu in mus]
    fpr, joining, accuracy = (np.stack(rows) for rows in zip(*curves, strict=True))
    area = float(1.0 - joining.min(axis=0).mean())
    return Envelope(fpr.min(axis=0), area, oscr_selective=float(accuracy.max(axis=0).mean()))


def _weighed(
    sets: tuple[ScorePair, ScorePair], losses: ArrayLike, standard: Standard, mu: float
) -> risk.SelectiveCurve:
    ids, ood = (combine(pair, standard, mu) for pair in sets)
    return risk.SelectiveCurve.of(ids, losses, ood)


def _curves(curve: risk.SelectiveCurve) -> tuple[Floats, Floats, Floats]:
    """Return FPR (n,) at k ID inputs accepted, mean FPR (n,) while the k-th joins, and accuracy (m,)."""
    pair = curve.pair
    kth = np.arange(1, pair.n + 1)
    entry = np.searchsorted(pair.id_accepted, kth)
    ids, ood = pair.id_accepted, pair.ood_accepted
    # Inside a tie FPR rises linearly with TPR; its mean over the step of one ID input is its value at the middle.
    part = (kth - 0.5 - ids[entry - 1]) / (ids[entry] - ids[entry - 1])
    joining = (ood[entry - 1] + part * (ood[entry] - ood[entry - 1])) / pair.m
    accuracy = np.concatenate([np.repeat(mean, counts) for counts, mean in risk.accuracy_steps(curve)])
    return ood[entry] / pair.m, joining, accuracy
