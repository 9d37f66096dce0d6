"""Selective classification: the risk of a classifier with a reject option, with OOD inputs and on ID alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from openbench.errors import MetricError
from openbench.metrics.curve import BLOCK, Counts, Floats, PooledCurve, as_scores, check_rate, least_count, most_count

UNABLE: Final = "unable"  # no threshold satisfies the constraints: not a number, and never to be averaged as one
Unable = Literal["unable"]


class OperatingPoint(NamedTuple):
    """The best threshold and its risk or cost; accepted if s ≤ `threshold`."""

    value: float
    threshold: float


def running_loss(id_scores: Floats, losses: ArrayLike, order: Counts | None = None) -> Floats:
    """Return (n+1,) cumulated losses of the ID samples in ascending order of score, starting at 0.

    Args:
        id_scores: (n,) checked scores.
        losses: (n,) e_i ≥ 0, usually 1 − correct.
        order: (n,) argsort of the scores; None = computed here.

    Raises:
        MetricError: losses of another length, or negative, infinite or NaN ones.
    """
    e = as_scores(losses, "ID losses")
    if e.size != id_scores.size:
        raise MetricError(f"losses and scores differ in length ({e.size} and {id_scores.size}) — pass one per image")
    if e.min() < 0 or not np.isfinite(e.max()):
        raise MetricError(f"ID losses must be finite and ≥ 0 (found [{e.min()}, {e.max()}]) — pass 1 − correct")
    total = np.zeros(e.size + 1)
    # Within a tie the order is arbitrary, and no curve reads these sums inside one.
    np.cumsum(e[np.argsort(id_scores) if order is None else order], out=total[1:])
    return total


@dataclass(frozen=True, eq=False)
class SelectiveCurve:
    """A PooledCurve with the loss of the accepted ID inputs.

    Args:
        pair: the pooled scores of the pair.
        cumulated: (n+1,) Σ e_i over the k ID samples of lowest score, from `running_loss`.
    """

    pair: PooledCurve
    cumulated: Floats

    @classmethod
    def of(cls, id_scores: ArrayLike, losses: ArrayLike, ood_scores: ArrayLike) -> "SelectiveCurve":
        """Build the curve from raw scores, larger = more OOD.

        Raises:
            MetricError: invalid scores or losses.
        """
        scores = as_scores(id_scores, "ID scores")
        return cls(PooledCurve.of(scores, ood_scores), running_loss(scores, losses))

    def risk(self, where: slice | Counts) -> Floats:
        """Return R = Σ e_i c_i / Σ c_i at some entries, +inf where nothing of ID is accepted."""
        accepted = self.pair.id_accepted[where]
        risk = np.asarray(self.cumulated[accepted] / np.maximum(accepted, 1))
        risk[accepted == 0] = np.inf
        return risk

    def blocks(self) -> Iterator[tuple[Counts, Counts, Floats]]:
        """Yield (id_accepted, ood_accepted, loss_accepted) in the overlapping stretches of `PooledCurve.blocks`."""
        for a, b in self.pair.blocks():
            yield a, b, self.cumulated[a]


class Constraint(Protocol):
    """A set of admissible operating points."""

    def feasible(self, pair: PooledCurve) -> slice | Counts:
        """Return the admissible entries of the curve, as a slice or as indices."""
        ...


@dataclass(frozen=True)
class TprFpr:
    """φ ≥ tpr and ρ ≤ fpr.

    Args:
        tpr: φ_min, the least share of ID accepted; 0.8 in the papers' tables.
        fpr: ρ_max, the largest share of OOD accepted.
    """

    tpr: float = 0.8
    fpr: float = 0.2

    def feasible(self, pair: PooledCurve) -> slice:
        """Return the entries between the two bounds: both counts rise along the curve."""
        first = np.searchsorted(pair.id_accepted, least_count(check_rate(self.tpr, "minimal TPR"), pair.n))
        stop = np.searchsorted(pair.ood_accepted, most_count(check_rate(self.fpr, "maximal FPR"), pair.m), side="right")
        return slice(int(first), int(stop))


@dataclass(frozen=True)
class PrecisionRecall:
    """κ ≥ precision and φ ≥ recall, with κ = (1−π)φ / ((1−π)φ + πρ).

    Args:
        precision: κ_min, the least share of ID among the accepted.
        recall: φ_min.
        prior: π, the share of OOD among all inputs in use.
    """

    precision: float = 0.9
    recall: float = 0.8
    prior: float = 0.25

    def feasible(self, pair: PooledCurve) -> Counts:
        """Return indices: recall keeps one end of the curve, but precision is not monotone in the threshold."""
        kappa, pi = check_rate(self.precision, "minimal precision"), check_rate(self.prior, "OOD prior")
        first = np.searchsorted(pair.id_accepted, least_count(check_rate(self.recall, "minimal recall"), pair.n))
        entries = []
        for start in range(int(first), pair.thresholds.size, BLOCK):
            right = (1.0 - pi) / pair.n * pair.id_accepted[start : start + BLOCK]
            wrong = pi / pair.m * pair.ood_accepted[start : start + BLOCK]
            entries.append(start + np.flatnonzero((right >= kappa * (right + wrong)) & (right > 0)))
        return np.concatenate(entries)


def least_risk(curve: SelectiveCurve, constraint: Constraint) -> OperatingPoint | Unable:
    """Return the smallest selective risk among admissible thresholds, or `unable` if there is none.

    Args:
        curve: the pair with its losses.
        constraint: `TprFpr` or `PrecisionRecall`.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199.
    """
    best: OperatingPoint | Unable = UNABLE
    for where in _stretches(constraint.feasible(curve.pair)):
        risk = curve.risk(where)
        at = int(np.argmin(risk))
        if risk[at] < (np.inf if best == UNABLE else best.value):
            best = OperatingPoint(float(risk[at]), float(curve.pair.thresholds[where][at]))
    return best


def _stretches(where: slice | Counts) -> Iterator[slice | Counts]:
    """Yield non-empty stretches of admissible entries that fit the processor's cache."""
    if isinstance(where, slice):
        yield from (slice(i, min(i + BLOCK, where.stop)) for i in range(where.start, where.stop, BLOCK))
    else:
        yield from (where[i : i + BLOCK] for i in range(0, where.size, BLOCK))


def least_cost(
    curve: SelectiveCurve, reject_id: float = 0.5, accept_ood: float = 1.0, reject_ood: float = 0.0, prior: float = 0.25
) -> OperatingPoint:
    """Return min over λ of (1−π)[Σ e_i c_i / n + ε1(1−φ)] + π[ε2 ρ + ε3(1−ρ)]; a wrong class costs its loss e_i.

    Args:
        curve: the pair with its losses.
        reject_id: ε1.
        accept_ood: ε2, predicting on an OOD input.
        reject_ood: ε3, usually 0.
        prior: π, the share of OOD.

    Raises:
        MetricError: a negative or non-finite price, or a prior outside [0, 1].
    """
    prices = (reject_id, accept_ood, reject_ood)
    if not all(np.isfinite(price) and price >= 0 for price in prices):
        raise MetricError(f"costs must be finite and ≥ 0 (found {prices}) — rescale them: a wrong class costs 1")
    pi, pair = check_rate(prior, "OOD prior"), curve.pair
    # The cost is linear in the accepted inputs: a constant, and one price for each loss, ID input and OOD input.
    fixed = (1.0 - pi) * reject_id + pi * reject_ood
    per_loss, per_id = (1.0 - pi) / pair.n, -(1.0 - pi) * reject_id / pair.n
    per_ood = pi * (accept_ood - reject_ood) / pair.m
    best, at, start = np.inf, 0, 0
    for a, b, loss in curve.blocks():
        expected = per_loss * loss
        expected += per_id * a
        expected += per_ood * b
        lowest = int(np.argmin(expected))
        if expected[lowest] < best:
            best, at = float(expected[lowest]), start + lowest
        start += a.size - 1
    return OperatingPoint(fixed + best, float(pair.thresholds[at]))


def risk_coverage(curve: SelectiveCurve, max_fpr: float = 1.0) -> tuple[Floats, Floats]:
    """Return the risk–coverage curve (φ, R), restricted to thresholds with ρ ≤ `max_fpr`.

    Args:
        curve: the pair with its losses.
        max_fpr: ρ_max; 1 = no restriction. If no point remains, the arrays are empty.
    """
    where = TprFpr(0.0, max_fpr).feasible(curve.pair)
    accepted = curve.pair.id_accepted[where]
    return (accepted / curve.pair.n)[accepted > 0], curve.risk(where)[accepted > 0]


def oscr(curve: SelectiveCurve) -> float:
    """Return ∫ CCR dρ, the area under correct classification rate over the share of OOD accepted.

    Equals P(ID input correct and scored below an OOD input), ties counted half. The tables of the reject-option paper
    use the name OSCR for `oscr_selective` instead.

    Args:
        curve: the pair with 0/1 losses.

    Reference: Dhamija, Günther, Boult, "Reducing network agnostophobia", NeurIPS 2018, arXiv 1811.04110.
    """
    total = 0.0
    for a, b, loss in curve.blocks():
        right = a - loss
        total += float(np.dot(b[1:] - b[:-1], right[1:] + right[:-1]))
    return total / (2 * curve.pair.n * curve.pair.m)


def oscr_selective(curve: SelectiveCurve) -> float:
    """Return ∫ (1 − R) dρ, the area under the accuracy among the *accepted* ID over the share of OOD accepted.

    Without ties it is the mean, over OOD inputs, of the accuracy among the ID inputs scored below. Where ID and OOD
    inputs tie, a share t ∈ [0, 1] of the tie is accepted, so that ρ takes every value: before it A are accepted with
    accuracy u, in it a with accuracy v, and ∫₀¹ (uA + v·t·a)/(A + t·a) dt = v + (u − v)·log(1 + a/A)·A/a. 1 − R is 0
    while no ID input is accepted.

    Args:
        curve: the pair with 0/1 losses.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, whose tables call it OSCR. `oscr` divides by all ID inputs instead of the accepted ones.
    """
    return sum(float(np.dot(joining, accuracy)) for joining, accuracy in accuracy_steps(curve)) / curve.pair.m


def accuracy_steps(curve: SelectiveCurve) -> Iterator[tuple[Counts, Floats]]:
    """Yield (number of OOD inputs that join, mean of 1 − R while they do) for the steps of ρ, in ascending order.

    Args:
        curve: the pair with 0/1 losses.
    """
    for a, b, loss in curve.blocks():
        ood = np.flatnonzero(b[1:] > b[:-1])  # steps that add to ρ
        before, within = a[ood], a[ood + 1] - a[ood]
        right, gained = before - loss[ood], within - (loss[ood + 1] - loss[ood])
        u, v = right / np.maximum(before, 1), gained / np.maximum(within, 1)
        ratio = within / np.maximum(before, 1)
        weight = np.divide(np.log1p(ratio), ratio, out=np.ones(ood.size), where=ratio > 0)
        weight[before == 0] = 0.0  # the accuracy within the tie, or 0 where it has no ID input
        yield b[ood + 1] - b[ood], v + (u - v) * weight


def ccr_at_fpr(curve: SelectiveCurve, fpr: float) -> float:
    """Return the largest share of ID that is accepted and correct while at most `fpr` of OOD is accepted.

    Args:
        curve: the pair with 0/1 losses.
        fpr: ρ_max, 1e-4 … 1e-1 in the paper.
    """
    last = TprFpr(0.0, fpr).feasible(curve.pair).stop - 1
    accepted = int(curve.pair.id_accepted[last])
    return (accepted - float(curve.cumulated[accepted])) / curve.pair.n


def aurc(id_scores: ArrayLike, losses: ArrayLike) -> float:
    """Return the area under the risk–coverage curve, (1/n) Σ_k (risk of the k lowest-scored samples).

    A tie contributes its expectation over all orders, so the value does not depend on the order of the samples.

    Args:
        id_scores: (n,) larger = more OOD.
        losses: (n,) e_i ≥ 0, usually 1 − correct.

    Raises:
        MetricError: invalid scores or losses.

    Reference: Geifman and El-Yaniv, NeurIPS 2017, arXiv 1705.08500; Geifman, Uziel, El-Yaniv, ICLR 2019,
        arXiv 1805.08206.
    """
    cumulated, ends = _steps(id_scores, losses)
    # Expected cumulated loss is linear inside a tie.
    expected = np.interp(np.arange(cumulated.size), ends, cumulated[ends])
    return float(np.mean(expected[1:] / np.arange(1, expected.size)))


def _steps(id_scores: ArrayLike, losses: ArrayLike) -> tuple[Floats, Counts]:
    """The cumulated losses (n+1,) in ascending order of score, and where ties end in it, 0 included."""
    scores = as_scores(id_scores, "ID scores")
    ordered = np.sort(scores)
    ends = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [ordered.size]])
    return running_loss(scores, losses), ends


def augrc(id_scores: ArrayLike, losses: ArrayLike) -> float:
    """Return the area under the generalized risk–coverage curve: the mean risk of errors that are not detected.

    The generalized risk is the loss of the accepted samples over all n, accepted or not, so that a few samples of high
    confidence weigh no more than others. Between two thresholds the curve is a straight line; so a tie contributes its
    expectation over all orders. With 0/1 losses it is (1 − AUROC of failures)·acc·(1 − acc) + ½(1 − acc)².

    Args:
        id_scores: (n,) larger = more OOD.
        losses: (n,) e_i ≥ 0, usually 1 − correct.

    Raises:
        MetricError: invalid scores or losses.

    Reference: Traub et al., "Overcoming common flaws in the evaluation of selective classification systems",
        NeurIPS 2024, arXiv 2407.01032.
    """
    cumulated, ends = _steps(id_scores, losses)
    heights = cumulated[ends]
    return float(np.dot(np.diff(ends), heights[1:] + heights[:-1]) / (2 * ends[-1] ** 2))


def excess_aurc(id_scores: ArrayLike, losses: ArrayLike) -> float:
    """Return AURC minus that of the oracle that rejects the largest losses first.

    Args:
        id_scores: (n,) larger = more OOD.
        losses: (n,) e_i ≥ 0.

    Raises:
        MetricError: invalid scores or losses.
    """
    e = as_scores(losses, "ID losses")
    return aurc(id_scores, e) - aurc(e, e)
