"""Class scores sorted once per row: the quality of prediction sets in any split, without forming the sets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.metrics.conformal.prediction_sets import (
    Nonconformity,
    SetReport,
    checked_labels,
    class_conditional,
    conformal_quantile,
    distributions,
    report_of,
)
from openbench.metrics.curve import Counts, Floats


class SplitReport(NamedTuple):
    """Mean and population deviation over splits, of coverage and of the number of classes per set."""

    coverage_mean: float
    coverage_std: float
    size_mean: float
    size_std: float


class Split(NamedTuple):
    """Rows to calibrate on, rows to test, and a uniform for every row."""

    calibration: Counts
    tested: Counts
    uniforms: Floats


@dataclass(frozen=True, eq=False)
class SortedClasses:
    """Class scores of each row in ascending order, for any draw of the uniforms.

    With the uniform U of its row, the k-th class has the score ascending_k − U·drops_k, which ascends in k as well. So
    the size of a set is found by bisection.

    Args:
        ascending: (n, c).
        drops: (n, c), or None where nothing is drawn.
        own: (n,) the place of the true class.
        labels: (n,) the true class.
    """

    ascending: Floats
    drops: Floats | None
    own: Counts
    labels: NDArray[np.int64]

    @classmethod
    def of_scores(cls, scores: ArrayLike, labels: ArrayLike) -> Self:
        """Sort class scores (n, c), larger = worse fit.

        Raises:
            MetricError: scores or labels that do not fit.
        """
        s = class_conditional(scores)
        y = checked_labels(labels, s.shape)
        return cls(np.sort(s, axis=1), None, _places(s, y), y)

    @classmethod
    def of_probabilities(
        cls, probabilities: ArrayLike, labels: ArrayLike, kinds: Iterable[Nonconformity]
    ) -> Iterator[Self]:
        """Sort class probabilities (n, c) once and yield the scores that each kind makes of them.

        Raises:
            MetricError: probabilities or labels that do not fit.
        """
        fit = -distributions(probabilities)
        y = checked_labels(labels, fit.shape)
        own = _places(fit, y)
        fit.sort(axis=1)
        ranked = np.negative(fit, out=fit)
        for kind in kinds:
            yield cls(kind.ascending(ranked), ranked if kind.draws else None, own, y)

    def at(self, rows: Counts, places: Counts, uniforms: Floats) -> Floats:
        """Return the score at one place of each of some rows, given the uniforms of all."""
        scores = self.ascending[rows, places]
        return scores if self.drops is None else scores - uniforms[rows] * self.drops[rows, places]

    def sizes(self, rows: Counts, quantile: float, uniforms: Floats) -> Counts:
        """Return how many classes of each of some rows have a score of at most `quantile`."""
        classes, found = self.ascending.shape[1], np.zeros(rows.size, dtype=np.int64)
        for step in (1 << bit for bit in reversed(range(classes.bit_length()))):
            tried = found + step
            inside = self.at(rows, np.minimum(tried, classes) - 1, uniforms) <= quantile
            found = np.where(inside & (tried <= classes), tried, found)
        return found

    def reports(self, split: Split, alphas: Sequence[float]) -> list[SetReport]:
        """Return the quality of the sets of one split at each miscoverage α."""
        fitted, own = (self.at(rows, self.own[rows], split.uniforms) for rows in (split.calibration, split.tested))
        found = []
        for quantile in (conformal_quantile(fitted, alpha) for alpha in alphas):
            sizes = self.sizes(split.tested, quantile, split.uniforms)
            found.append(report_of(own <= quantile, sizes, self.labels[split.tested]))
        return found


def _places(scores: Floats, labels: NDArray[np.int64]) -> Counts:
    """Return (n,) the number of classes before the true one; among equal scores the smaller class number is first."""
    own = scores[np.arange(labels.size), labels][:, None]
    earlier = (scores == own) & (np.arange(scores.shape[1]) < labels[:, None])
    return np.asarray((scores < own).sum(axis=1) + earlier.sum(axis=1))


def given_split(calibration: int, tested: int, seed: int) -> Split:
    """Return the split into the first rows and the others; uniforms of the two parts are drawn separately."""
    uniforms = [np.random.default_rng(s).random(n) for s, n in ((seed, calibration), (seed + 1, tested))]
    rows = np.arange(calibration + tested)
    return Split(rows[:calibration], rows[calibration:], np.concatenate(uniforms))


def over_splits(
    classes: SortedClasses, calibration: int, alphas: Sequence[float], splits: int, seed: int
) -> list[SplitReport]:
    """Return coverage and size over random splits, each with its own uniforms, at each miscoverage α.

    Args:
        classes: the rows to split.
        calibration: rows in the calibration part; the others are tested.
        alphas: miscoverage levels in (0, 1).
        splits: how many, ≥ 2.
        seed: of the splits and the uniforms; all kinds of sets use the same one, and therefore the same splits.
    """
    n, found = classes.labels.size, []
    for number in range(splits):
        rng = np.random.default_rng([seed, number])
        order = rng.permutation(n)
        split = Split(order[:calibration], order[calibration:], rng.random(n))
        found.append([(report.coverage, report.mean_size) for report in classes.reports(split, alphas)])
    means, deviations = np.mean(found, axis=0), np.std(found, axis=0)
    return [
        SplitReport(float(m[0]), float(d[0]), float(m[1]), float(d[1])) for m, d in zip(means, deviations, strict=True)
    ]
