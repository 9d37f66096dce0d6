"""Two scores in one: s = s_r + μ·s_g, where s_r finds misclassified ID inputs and s_g separates OOD ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, PooledCurve, as_scores, check_rate, least_count
from openbench.metrics.selective.risk import (
    UNABLE,
    Constraint,
    OperatingPoint,
    SelectiveCurve,
    TprFpr,
    Unable,
    accuracy_steps,
    least_risk,
)

DEFAULT_MUS: tuple[float, ...] = (0.0, *(float(mu) for mu in np.logspace(-3, 3, 121)))  # 20 per decade


class ScorePair(NamedTuple):
    """The two scores of one set, each (n,), larger = more to be rejected."""

    risk: ArrayLike
    separation: ArrayLike


@dataclass(frozen=True)
class Standard:
    """Means and standard deviations that bring the two scores to one unit, taken on ID validation."""

    risk_mean: float = 0.0
    risk_std: float = 1.0
    separation_mean: float = 0.0
    separation_std: float = 1.0

    @classmethod
    def of(cls, id_val: ScorePair) -> "Standard":
        """Measure on ID validation.

        Raises:
            MetricError: a score that is constant or infinite there.
        """
        moments: list[float] = []
        for name, values in zip(ScorePair._fields, id_val, strict=True):
            scores = as_scores(values, f"{name} scores")
            with np.errstate(invalid="ignore"):
                mean, std = float(scores.mean()), float(scores.std())
            if not (np.isfinite(mean) and np.isfinite(std) and std > 0):
                raise MetricError(
                    f"{name} score cannot be standardised — mean {mean}, standard deviation {std} on ID validation — "
                    "both must be finite, the second positive — use another score"
                )
            moments += [mean, std]
        return cls(*moments)


@dataclass(frozen=True)
class DoubleScore:
    """A fitted double score.

    Args:
        standard: the unit of each score.
        mu: μ ≥ 0, the weight of the separating score.
        threshold: λ; accepted iff s ≤ λ.
        risk: selective risk at (μ, λ) on the data they were chosen on.
        in_sample: True if that data is the test data: an unattainable reference.
    """

    standard: Standard
    mu: float
    threshold: float
    risk: float
    in_sample: bool

    def __call__(self, pair: ScorePair) -> Floats:
        """Return (n,) s = s_r + μ·s_g of standardised scores, larger = more to be rejected."""
        return combine(pair, self.standard, self.mu)


def combine(pair: ScorePair, standard: Standard, mu: float) -> Floats:
    """Return (n,) (r − mean_r)/std_r + μ·(g − mean_g)/std_g.

    Raises:
        MetricError: invalid or unequally long scores, or a negative or infinite μ.
    """
    r, g = as_scores(pair.risk, "risk scores"), as_scores(pair.separation, "separation scores")
    if r.size != g.size:
        raise MetricError(f"the two scores differ in length — {r.size} against {g.size} — score the same images")
    if not (np.isfinite(mu) and mu >= 0):
        raise MetricError(f"μ must be finite and ≥ 0 — found {mu} — both scores must point the same way")
    s = (r - standard.risk_mean) / standard.risk_std
    # 0·∞ is not a number; at μ = 0 the second score is left out.
    return s + mu * ((g - standard.separation_mean) / standard.separation_std) if mu > 0 else s


class Weighing(NamedTuple):
    """The outcome of one weight μ: the AUROC, and the least risk with its threshold, or `unable`."""

    mu: float
    auroc: float
    point: OperatingPoint | Unable


def weighings(
    sets: tuple[ScorePair, ScorePair],
    losses: ArrayLike,
    standard: Standard,
    constraint: Constraint,
    mus: Sequence[float],
) -> list[Weighing]:
    """Return the least selective risk over all thresholds for each μ.

    Args:
        sets: both scores on the ID and on the OOD data that the choice is made on.
        losses: (n,) e_i of the ID side, usually 1 − correct.
        standard: the unit of each score.
        constraint: `TprFpr` or `PrecisionRecall`.
        mus: the weights, in these units.

    Raises:
        MetricError: invalid scores or losses, or a weight that is negative or infinite.
    """
    found = []
    for mu in mus:
        id_scores, ood_scores = (combine(pair, standard, mu) for pair in sets)
        curve = SelectiveCurve.of(id_scores, losses, ood_scores)
        found.append(Weighing(mu, curve.pair.auroc(), least_risk(curve, constraint)))
    return found


def best_weighing(found: Sequence[Weighing]) -> Weighing | Unable:
    """Return the weighing of least risk; ties go to the largest AUROC, then to the smallest μ.

    An accurate classifier makes no mistake among the most certain inputs: the risk is then 0 for many weights and does
    not say which of them separates OOD inputs.

    Args:
        found: from `weighings`; `unable` is returned if none of them is feasible.
    """
    feasible = [(w.point.value, -w.auroc, w.mu, w) for w in found if not isinstance(w.point, str)]
    return min(feasible)[-1] if feasible else UNABLE


def _fitted(best: Weighing, standard: Standard, *, in_sample: bool) -> DoubleScore | Unable:
    point = best.point
    return point if isinstance(point, str) else DoubleScore(standard, best.mu, point.threshold, point.value, in_sample)


def common_constraint(sets: tuple[ScorePair, ScorePair], tpr: float) -> TprFpr:
    """Return φ ≥ tpr with, as ρ_max, the larger share of OOD that either score alone accepts there: both can meet it.

    Args:
        sets: both scores on the ID and on the OOD data that the choice is made on.
        tpr: φ_min.

    Raises:
        MetricError: invalid scores, or a rate outside [0, 1].

    Reference: Franc, Prusa, Paplham 2023, Table 2, where the scores are those of all methods compared.
    """
    check_rate(tpr, "minimal TPR")
    curves = [PooledCurve.of(ids, ood) for ids, ood in zip(*sets, strict=True)]
    return TprFpr(tpr, max(curve.fpr_at_tpr_id_positive(tpr) for curve in curves))


def fit_double_score(
    id_val: ScorePair,
    losses: ArrayLike,
    ood_val: ScorePair,
    constraint: Constraint,
    mus: Sequence[float] = DEFAULT_MUS,
) -> DoubleScore | Unable:
    """Return the (μ, λ) of least selective risk on validation data, or `unable` if no pair meets the constraint.

    Args:
        id_val: both scores on ID validation; they also set the units.
        losses: (n,) e_i on ID validation, usually 1 − correct.
        ood_val: both scores on OOD validation.
        constraint: `TprFpr` or `PrecisionRecall`.
        mus: the weights searched, in standardised units; every threshold is tried for each.

    Raises:
        MetricError: invalid scores or losses, or a score that is constant on ID validation.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199. Differs in choosing (μ, λ) on validation data; see `fit_double_score_oracle`.
    """
    standard = Standard.of(id_val)
    best = best_weighing(weighings((id_val, ood_val), losses, standard, constraint, mus))
    return best if isinstance(best, str) else _fitted(best, standard, in_sample=False)


def fit_double_score_oracle(
    id_test: ScorePair,
    losses: ArrayLike,
    ood_test: ScorePair,
    constraint: Constraint,
    mus: Sequence[float] = DEFAULT_MUS,
) -> DoubleScore | Unable:
    """Return the (μ, λ) of least risk on the test data themselves, as the paper chooses them: a bound, not a method.

    Args:
        id_test: both scores on ID test, in their own units.
        losses: (n,) e_i on ID test.
        ood_test: both scores on OOD test.
        constraint: `TprFpr` or `PrecisionRecall`.
        mus: the weights searched, in the scores' own units.

    Raises:
        MetricError: invalid scores or losses.
    """
    best = best_weighing(weighings((id_test, ood_test), losses, Standard(), constraint, mus))
    return best if isinstance(best, str) else _fitted(best, Standard(), in_sample=True)


@dataclass(frozen=True, eq=False)
class Envelope:
    """The best that any weight μ of a double score attains, ID positive; μ may differ from point to point.

    Args:
        fpr: (n,) least share of OOD accepted where at least k of n ID inputs are, k = 1 … n.
        precision: (n,) largest share of ID among what is accepted there.
        accuracy: (m,) largest accuracy among the accepted ID while the j-th of m OOD inputs joins, j = 1 … m.
        auroc: area above the least FPR over TPR; ties are accepted in part, as for a single score.
        ap_in: mean precision over recall, step-wise.
        oscr_selective: mean accuracy over FPR.
    """

    fpr: Floats
    precision: Floats
    accuracy: Floats
    auroc: float
    ap_in: float
    oscr_selective: float

    def fpr_at_tpr(self, tpr: float) -> float:
        """Return the least share of OOD accepted where at least `tpr` of ID is."""
        return float(self.fpr[max(1, least_count(check_rate(tpr, "minimal TPR"), self.fpr.size)) - 1])


def envelope(
    sets: tuple[ScorePair, ScorePair], losses: ArrayLike, standard: Standard, mus: Sequence[float] = DEFAULT_MUS
) -> Envelope:
    """Return the envelope over weights of the ROC, precision–recall and accuracy curves of a double score.

    With a single weight its areas are AUROC, average precision (ID positive) and selective OSCR of that score. A rule
    that is fixed beforehand attains at most one point of a curve.

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
    found = [_curves(SelectiveCurve.of(*_weighed(sets, standard, mu, losses))) for mu in mus]
    fpr, joining, precision, accuracy = (np.stack(curves) for curves in zip(*found, strict=True))
    best_precision, best_accuracy = precision.max(axis=0), accuracy.max(axis=0)
    return Envelope(
        fpr=fpr.min(axis=0),
        precision=best_precision,
        accuracy=best_accuracy,
        auroc=float(1.0 - joining.min(axis=0).mean()),
        ap_in=float(best_precision.mean()),
        oscr_selective=float(best_accuracy.mean()),
    )


def _weighed(
    sets: tuple[ScorePair, ScorePair], standard: Standard, mu: float, losses: ArrayLike
) -> tuple[Floats, ArrayLike, Floats]:
    ids, ood = (combine(pair, standard, mu) for pair in sets)
    return ids, losses, ood


def _curves(curve: SelectiveCurve) -> tuple[Floats, Floats, Floats, Floats]:
    """FPR once k ID inputs are accepted, mean FPR while the k-th joins, precision (n,), and accuracy (m,)."""
    pair: PooledCurve = curve.pair
    kth = np.arange(1, pair.n + 1)
    entry = np.searchsorted(pair.id_accepted, kth)
    ids, ood = pair.id_accepted, pair.ood_accepted
    # Inside a tie FPR rises linearly with TPR; its mean over the step of one ID input is its value at the middle.
    part = (kth - 0.5 - ids[entry - 1]) / (ids[entry] - ids[entry - 1])
    joining = (ood[entry - 1] + part * (ood[entry] - ood[entry - 1])) / pair.m
    accuracy = np.concatenate([np.repeat(mean, counts) for counts, mean in accuracy_steps(curve)])
    return ood[entry] / pair.m, joining, ids[entry] / (ids[entry] + ood[entry]), accuracy
