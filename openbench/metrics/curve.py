"""Ranking metrics, read from the merged, sorted scores of an ID and an OOD set; OOD is positive unless stated."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

BLOCK = 8192  # curve entries worked on at a time: 64 KiB an array


def as_scores(values: ArrayLike, name: str) -> Floats:
    """Return `values` as a checked float64 vector.

    Args:
        values: (n,) numbers; ±inf is allowed.
        name: what the caller calls them, for the message.

    Raises:
        MetricError: not numbers, not one-dimensional, empty, or NaN among them.
    """
    scores = as_floats(values, name)
    if scores.ndim != 1:
        raise MetricError(f"{name} must be one-dimensional (found shape {scores.shape}) — pass one number per image")
    if scores.size == 0:
        raise MetricError(f"{name} is empty — check that the set was scored")
    if np.isnan(scores).any():
        bad = np.flatnonzero(np.isnan(scores))
        found = f"{bad.size} of {scores.size} scores, the first at index {bad[0]}"
        raise MetricError(f"{name} contains NaN ({found}), which cannot be ranked — fix what produced them")
    return scores


def as_floats(values: ArrayLike, name: str) -> Floats:
    """Return `values` as float64.

    Raises:
        MetricError: they are not numbers.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MetricError(f"{name} are not numbers: {error}") from error


def placements(ids: Floats, ood: Floats) -> tuple[Floats, Floats]:
    """Return (n,) the share of OOD above each ID score, and (m,) the share of ID below each OOD score, ties counted ½.

    Either has the AUROC as its mean.

    Args:
        ids: (n,) scores of ID images.
        ood: (m,) scores of OOD images.
    """
    return 1.0 - share_below(ids, ood), share_below(ood, ids)


def share_below(values: Floats, others: Floats) -> Floats:
    """Return for each of the values (n,) the share of the others (m,) below it, half of the equal ones counted."""
    ordered = np.sort(others)
    twice = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    return np.asarray(twice / (2.0 * len(others)))


def check_rate(value: float, name: str, *, closed: bool = True) -> float:
    """Return `value` if it lies in [0, 1], or in (0, 1) where the ends make no sense.

    Raises:
        MetricError: outside the interval, or not a number.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not (number and (0.0 <= value <= 1.0 if closed else 0.0 < value < 1.0)):
        interval = "[0, 1]" if closed else "(0, 1)"
        raise MetricError(f"{name} is out of range: found {value!r}, allowed {interval} — pass a fraction, not %")
    return float(value)


def least_count(rate: float, total: int) -> int:
    """Return the smallest k with k/total ≥ rate; the float quotient decides, as in every ROC routine."""
    k = int(np.ceil(rate * total))
    while k > 0 and (k - 1) / total >= rate:
        k -= 1
    while k < total and k / total < rate:
        k += 1
    return k


def most_count(rate: float, total: int) -> int:
    """Return the largest k with k/total ≤ rate."""
    k = int(np.floor(rate * total))
    while k < total and (k + 1) / total <= rate:
        k += 1
    while k > 0 and k / total > rate:
        k -= 1
    return k


class PrecisionRecallAreas(NamedTuple):
    """The two areas called AUPR."""

    trapezoid: float
    average_precision: float


class BestF1(NamedTuple):
    """The operating point of largest F1; an input is flagged if its score is ≥ `threshold`."""

    f1: float
    accuracy: float
    precision: float
    recall: float
    threshold: float


def _recall_steps(blocks: Iterable[tuple[Counts, Counts]]) -> tuple[float, float]:
    """Return Σ (step of the hits) · precision, with the precision at the lower and at the upper entry of each step.

    An empty selection has precision 1, as the curve starts at (recall 0, precision 1).

    Args:
        blocks: (hits, false alarms) in stretches of the curve.
    """
    lower = upper = 0.0
    for hits, alarms in blocks:
        selected = hits + alarms
        precision = hits / np.maximum(selected, 1)
        precision[selected == 0] = 1.0
        steps = np.abs(np.diff(hits)).astype(np.float64)
        lower += float(np.dot(steps, precision[:-1]))
        upper += float(np.dot(steps, precision[1:]))
    return lower, upper


def _workspace(ids: Floats, ood: Floats) -> tuple[Floats, int]:
    """Return (3, n+m+1) working rows, the first one −∞, the ID and the OOD scores, and n.

    The curve keeps its results in this block: separate arrays would be returned to the system when freed, and getting
    their pages back for the next pair takes longer than all the arithmetic.
    """
    block = np.empty((3, 1 + ids.size + ood.size))
    block[0, 0] = -np.inf
    block[0, 1 : ids.size + 1] = ids
    block[0, ids.size + 1 :] = ood
    return block, ids.size


@dataclass(frozen=True, eq=False)
class PooledCurve:
    """How many ID and OOD scores are accepted (s ≤ λ) at every threshold that makes a difference.

    Entry 0 is the threshold −∞, which accepts nothing; the others are the distinct pooled scores, ascending. Tied
    scores share one entry, so no metric depends on the order of the samples.

    Args:
        thresholds: (t+1,) λ.
        id_accepted: (t+1,) number of ID scores ≤ λ.
        ood_accepted: (t+1,) number of OOD scores ≤ λ.
    """

    thresholds: Floats
    id_accepted: Counts
    ood_accepted: Counts

    @classmethod
    def of(cls, id_scores: ArrayLike, ood_scores: ArrayLike) -> Self:
        """Return the curve of two sets of scores.

        Args:
            id_scores: (n,) larger = more OOD.
            ood_scores: (m,) on the same scale.

        Raises:
            MetricError: a side is empty, not one-dimensional, or contains NaN.
        """
        block, n = _workspace(as_scores(id_scores, "ID scores"), as_scores(ood_scores, "OOD scores"))
        block[0, 1 : n + 1].sort()
        return cls._merged(block, n)

    @classmethod
    def of_sorted_id(cls, id_sorted: Floats, ood: Floats) -> Self:
        """Return the curve of checked scores, of which the ID side is sorted already."""
        return cls._merged(*_workspace(id_sorted, ood))

    @classmethod
    def _merged(cls, block: Floats, n: int) -> Self:
        """Return the curve of a workspace whose ID scores are sorted."""
        pooled, values, spare = block
        pooled[n + 1 :].sort()
        order = np.argsort(pooled, kind="stable")  # timsort: two presorted runs merge without a full sort
        np.take(pooled, order, out=values, mode="clip")  # "clip" lets take write to `out` without a copy
        is_ood = order > n
        del order  # as large as the curve
        ends = np.ones(values.size, dtype=bool)  # an entry is the last of its tie, or the leading −∞
        np.not_equal(values[2:], values[1:-1], out=ends[1:-1])
        ood = np.cumsum(is_ood, out=spare.view(np.int64))
        if ends.all():
            accepted = np.cumsum(np.logical_not(is_ood, out=is_ood), out=pooled.view(np.int64))
            accepted -= 1  # the leading −∞ is not a score
            return cls(values, accepted, ood)
        accepted = np.flatnonzero(ends)  # the index of an entry is the number of scores accepted
        thresholds = np.take(values, accepted, out=pooled[: accepted.size], mode="clip")
        ood = np.take(ood, accepted, out=values.view(np.int64)[: accepted.size], mode="clip")
        accepted -= ood
        return cls(thresholds, accepted, ood)

    def blocks(self) -> Iterator[tuple[Counts, Counts]]:
        """Yield (id_accepted, ood_accepted) in stretches that overlap by one entry and fit the processor's cache.

        Sums and extrema over them are several times faster than over whole arrays.
        """
        for start in range(0, self.thresholds.size - 1, BLOCK):
            yield self.id_accepted[start : start + BLOCK + 1], self.ood_accepted[start : start + BLOCK + 1]

    @property
    def n(self) -> int:
        """Number of ID scores."""
        return int(self.id_accepted[-1])

    @property
    def m(self) -> int:
        """Number of OOD scores."""
        return int(self.ood_accepted[-1])

    def rates(self, index: int) -> tuple[float, float]:
        """Return (FPR, FNR) with OOD positive at entry `index`: ID flagged, OOD accepted."""
        return (self.n - int(self.id_accepted[index])) / self.n, int(self.ood_accepted[index]) / self.m

    def at(self, threshold: float) -> int:
        """Return the entry that holds at λ: the last whose threshold is ≤ λ."""
        return int(np.searchsorted(self.thresholds, threshold, side="right")) - 1

    def auroc(self) -> float:
        """Return P(b > a) + ½ P(b = a) for an ID score a and an OOD score b; an exact count, divided once."""
        # Each OOD score beats the ID scores below it and half of those tied with it: Σ ΔB·(A before + A after) / 2.
        twice_wins = sum(int(np.dot(b[1:] - b[:-1], a[1:] + a[:-1])) for a, b in self.blocks())
        return twice_wins / (2 * self.n * self.m)

    @cached_property
    def aupr_out(self) -> PrecisionRecallAreas:
        """Return the precision–recall areas with OOD positive.

        Reference: the trapezoid is what OpenOOD's tables use; Davis and Goadrich (ICML 2006) explain why the step-wise
            form (average precision) is the safer one with few or tied scores.
        """
        # More is flagged as λ falls: a step of recall ends at the lower entry.
        lower, upper = _recall_steps((self.m - b, self.n - a) for a, b in self.blocks())
        return PrecisionRecallAreas(0.5 * (lower + upper) / self.m, lower / self.m)

    @cached_property
    def aupr_in(self) -> PrecisionRecallAreas:
        """Return the precision–recall areas with ID positive (score −s)."""
        lower, upper = _recall_steps(self.blocks())
        return PrecisionRecallAreas(0.5 * (lower + upper) / self.n, upper / self.n)

    def fpr_at_tpr(self, tpr: float = 0.95) -> float:
        """Return the smallest share of ID flagged among thresholds that flag at least `tpr` of OOD.

        Args:
            tpr: 0.95 in every published table.

        Reference: Zhang et al., OpenOOD v1.5, arXiv 2306.09301 (OOD positive).
        """
        may_accept = self.m - least_count(tpr, self.m)
        last = int(np.searchsorted(self.ood_accepted, may_accept, side="right")) - 1
        return self.rates(last)[0]

    def fpr_at_tpr_id_positive(self, tpr: float = 0.95) -> float:
        """Return the smallest share of OOD accepted among thresholds that accept at least `tpr` of ID.

        Args:
            tpr: 0.95 in every published table.

        Reference: Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136, and most papers before 2023.
        """
        first = int(np.searchsorted(self.id_accepted, least_count(tpr, self.n), side="left"))
        return self.rates(first)[1]

    def detection_error(self) -> float:
        """Return min over λ of ½(FPR + FNR)."""
        n, m = self.n, self.m
        # ½(1 − A/n + B/m) is smallest where m·A − n·B is largest; integers keep ties exact.
        advantage = max(int((a * m - b * n).max()) for a, b in self.blocks())
        return 0.5 * (1.0 - advantage / (n * m))

    @cached_property
    def best_f1(self) -> BestF1:
        """Return F1, accuracy, precision and recall (OOD positive) at the largest threshold of best F1."""
        n, m = self.n, self.m
        best, at, start = -1.0, 0, 0
        for a, b in self.blocks():
            # Flagging s ≥ thresholds[j + 1] leaves entry j accepted; F1 = 2·TP / (flagged + m).
            hits = m - b[:-1]
            f1 = hits / (hits + (n + m) - a[:-1])
            last = f1.size - 1 - int(np.argmax(f1[::-1]))
            if f1[last] >= best:
                best, at = float(f1[last]), start + last
            start += f1.size
        hit = m - int(self.ood_accepted[at])
        alarms = n - int(self.id_accepted[at])
        accuracy, precision, recall = (hit + n - alarms) / (n + m), hit / (hit + alarms), hit / m
        return BestF1(2.0 * best, accuracy, precision, recall, float(self.thresholds[at + 1]))

    def ranking(self) -> dict[str, float]:
        """Return all ranking metrics under their keys."""
        return {key: metric(self) for key, metric in RANKING.items()}


RANKING: dict[str, Callable[[PooledCurve], float]] = {
    "auroc": PooledCurve.auroc,
    "aupr_in": lambda curve: curve.aupr_in.trapezoid,
    "aupr_out": lambda curve: curve.aupr_out.trapezoid,
    "ap_in": lambda curve: curve.aupr_in.average_precision,
    "ap_out": lambda curve: curve.aupr_out.average_precision,
    "fpr95": PooledCurve.fpr_at_tpr,
    "fpr95_id_positive": PooledCurve.fpr_at_tpr_id_positive,
    "detection_error": PooledCurve.detection_error,
    "f1": lambda curve: curve.best_f1.f1,
    "accuracy": lambda curve: curve.best_f1.accuracy,
    "precision": lambda curve: curve.best_f1.precision,
    "recall": lambda curve: curve.best_f1.recall,
    "f1_threshold": lambda curve: curve.best_f1.threshold,
}
CURVE_METRICS = {key: metric for key, metric in RANKING.items() if key != "f1_threshold"}  # rates


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return P(b > a) + ½ P(b = a) for an ID score a and an OOD score b.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return PooledCurve.of(id_scores, ood_scores).auroc()


def fpr95(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the smallest share of ID flagged among thresholds that flag ≥ 95 % of OOD (OOD positive).

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.

    Reference: Zhang et al., OpenOOD v1.5, arXiv 2306.09301.
    """
    return PooledCurve.of(id_scores, ood_scores).fpr_at_tpr()


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
    return PooledCurve.of(id_scores, ood_scores).fpr_at_tpr(rate)


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
    return PooledCurve.of(id_scores, ood_scores).fpr_at_tpr_id_positive(rate)


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the area under the precision–recall curve with OOD positive, by trapezoid as in OpenOOD's tables.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return PooledCurve.of(id_scores, ood_scores).aupr_out.trapezoid


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the area under the precision–recall curve with ID positive, by trapezoid as in OpenOOD's tables.

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return PooledCurve.of(id_scores, ood_scores).aupr_in.trapezoid


def detection_error(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return min over thresholds of ½(FPR + FNR).

    Args:
        id_scores: (n,) larger = more OOD.
        ood_scores: (m,) on the same scale.

    Raises:
        MetricError: a side is empty, not one-dimensional, or contains NaN.
    """
    return PooledCurve.of(id_scores, ood_scores).detection_error()
