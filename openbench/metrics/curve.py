"""The sorted, merged scores of one ID/OOD pair: computed once, read by every threshold metric."""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Self

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
        MetricError: no numbers, not one-dimensional, empty, or containing NaN.
    """
    scores = as_floats(values, name)
    if scores.ndim != 1:
        raise MetricError(f"{name} must be one-dimensional — found shape {scores.shape} — pass one number per image")
    if scores.size == 0:
        raise MetricError(f"{name} is empty — a metric needs at least one score — check that the set was scored")
    if np.isnan(scores).any():
        bad = np.flatnonzero(np.isnan(scores))
        raise MetricError(
            f"{name} contains NaN — {bad.size} of {scores.size} scores, the first at index {bad[0]} — "
            "finite numbers and ±inf can be ranked — fix the method that produced them"
        )
    return scores


def as_floats(values: ArrayLike, name: str) -> Floats:
    """Return `values` as float64.

    Raises:
        MetricError: they are no numbers.
    """
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MetricError(f"{name}: found {type(values).__name__}, {error} — numbers expected") from error


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
        raise MetricError(f"{name} is out of range — found {value!r} — allowed is {interval} — pass a fraction, not %")
    return float(value)


def least_count(rate: float, total: int) -> int:
    """Return the smallest k with k/total ≥ rate; the float quotient decides, as it does in every ROC routine."""
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


def _laid_out(ids: Floats, ood: Floats) -> tuple[Floats, int]:
    """Return (3, n+m+1) working rows, the first holding −∞, the ID and the OOD scores, and n.

    One block for all rows, which a curve then keeps: the C library hands small blocks back to the system as soon as
    they are freed, and fetching their pages again for the next pair costs more than all the arithmetic on them.
    """
    block = np.empty((3, 1 + ids.size + ood.size))
    block[0, 0] = -np.inf
    block[0, 1 : ids.size + 1] = ids
    block[0, ids.size + 1 :] = ood
    return block, ids.size


@dataclass(frozen=True, eq=False)
class PooledCurve:
    """How many ID and OOD scores are accepted (s ≤ λ) at every threshold that makes a difference.

    Entry 0 is the threshold −∞ that accepts nothing; the others are the distinct pooled scores, ascending. Tied
    scores share one entry, so no number read from the curve depends on the order of the samples.

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
        """Sort both sides apart (numpy's vectorised sort) and merge the two runs in linear time.

        Args:
            id_scores: (n,) larger = more OOD.
            ood_scores: (m,) on the same scale.

        Raises:
            MetricError: a side is empty, not one-dimensional, or contains NaN.
        """
        block, n = _laid_out(as_scores(id_scores, "ID scores"), as_scores(ood_scores, "OOD scores"))
        block[0, 1 : n + 1].sort()
        return cls._merged(block, n)

    @classmethod
    def of_sorted_id(cls, id_sorted: Floats, ood: Floats) -> Self:
        """Sort the OOD side and merge it with an ID side that is ascending; both are checked already."""
        return cls._merged(*_laid_out(id_sorted, ood))

    @classmethod
    def _merged(cls, block: Floats, n: int) -> Self:
        """Sort the OOD run pooled[n+1:] and merge it with pooled[:n+1] (−∞, then ascending ID scores)."""
        pooled, values, spare = block
        pooled[n + 1 :].sort()
        order = np.argsort(pooled, kind="stable")  # timsort: two presorted runs merge without a full sort
        np.take(pooled, order, out=values, mode="clip")  # "clip" lets take write to `out` without a copy
        is_ood = order > n
        del order  # as large as the curve, and the rows hold all that follows
        ends = np.ones(values.size, dtype=bool)  # an entry is the last of its tie, or the leading −∞
        np.not_equal(values[2:], values[1:-1], out=ends[1:-1])
        ood = np.cumsum(is_ood, out=spare.view(np.int64))
        if ends.all():
            accepted = np.cumsum(np.logical_not(is_ood, out=is_ood), out=pooled.view(np.int64))
            accepted -= 1  # the leading −∞ is not a score
            return cls(values, accepted, ood)
        kept = np.flatnonzero(ends)
        thresholds = np.take(values, kept, out=pooled[: kept.size], mode="clip")
        ood = np.take(ood, kept, out=values.view(np.int64)[: kept.size], mode="clip")
        kept -= ood  # an entry's place is how many are accepted in all
        return cls(thresholds, kept, ood)

    def blocks(self) -> Iterator[tuple[Counts, Counts]]:
        """Yield (id_accepted, ood_accepted) in stretches that overlap by one entry and fit the processor's cache.

        Sums and extrema over the curve run several times faster on them than on whole arrays, whose temporaries have
        to be fetched from the system page by page.
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
        """Return the entry in force at any λ: the last whose threshold is ≤ λ."""
        return int(np.searchsorted(self.thresholds, threshold, side="right")) - 1
