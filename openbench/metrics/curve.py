"""The sorted, merged scores of one ID/OOD pair: computed once, read by every threshold metric."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_BLOCK = 8192  # curve entries worked on at a time: 64 KiB an array


def as_scores(values: ArrayLike, name: str) -> Floats:
    """Return `values` as a checked float64 vector.

    Args:
        values: (n,) numbers; ±inf is allowed.
        name: what the caller calls them, for the message.

    Raises:
        MetricError: not one-dimensional, empty, or containing NaN.
    """
    scores = np.asarray(values, dtype=np.float64)
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


def check_rate(value: float, name: str, *, closed: bool = True) -> float:
    """Return `value` if it lies in [0, 1], or in (0, 1) where the ends make no sense.

    Raises:
        MetricError: outside the interval.
    """
    inside = 0.0 <= value <= 1.0 if closed else 0.0 < value < 1.0
    if not inside:
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
        ids = as_scores(id_scores, "ID scores")
        pooled = np.concatenate([ids, as_scores(ood_scores, "OOD scores")])
        pooled[: ids.size].sort()
        pooled[ids.size :].sort()
        return cls._merged(pooled, ids.size)

    @classmethod
    def of_sorted(cls, id_sorted: Floats, ood_sorted: Floats) -> Self:
        """Merge two ascending, checked score vectors."""
        return cls._merged(np.concatenate([id_sorted, ood_sorted]), id_sorted.size)

    @classmethod
    def _merged(cls, pooled: Floats, n: int) -> Self:
        """Merge the ascending runs pooled[:n] (ID) and pooled[n:] (OOD); `pooled` is overwritten."""
        order = np.argsort(pooled, kind="stable")  # timsort: two presorted runs merge without a full sort
        values = np.empty(pooled.size + 1)
        values[0] = -np.inf
        np.take(pooled, order, out=values[1:], mode="clip")  # "clip" lets take write to `out` without a copy
        ood = np.zeros(values.size, dtype=np.int64)
        np.cumsum(order >= n, out=ood[1:])
        ends = np.ones(values.size, dtype=bool)  # an entry is the last of its tie, or the leading −∞
        np.not_equal(values[2:], values[1:-1], out=ends[1:-1])
        accepted = np.arange(values.size) if ends.all() else np.flatnonzero(ends)
        if accepted.size < values.size:
            # Written over what is no longer needed: fresh pages cost more than the copy itself.
            values = np.take(values, accepted, out=pooled[: accepted.size], mode="clip")
            ood = np.take(ood, accepted, out=order[: accepted.size], mode="clip")
        accepted -= ood  # how many are accepted in all, less those that are OOD
        return cls(values, accepted, ood)

    def blocks(self) -> Iterator[tuple[Counts, Counts]]:
        """Yield (id_accepted, ood_accepted) in stretches that overlap by one entry and fit the processor's cache.

        Sums and extrema over the curve run several times faster on them than on whole arrays, whose temporaries have
        to be fetched from the system page by page.
        """
        for start in range(0, self.thresholds.size - 1, _BLOCK):
            yield self.id_accepted[start : start + _BLOCK + 1], self.ood_accepted[start : start + _BLOCK + 1]

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
