"""Prediction sets over random splits into calibration and test: how much their coverage and size vary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from openbench.metrics.curve import Counts, Floats
from openbench.metrics.prediction_sets import Nonconformity, checked_labels, conformal_quantile


class SplitReport(NamedTuple):
    """Mean and population deviation over splits, of coverage and of the number of classes per set."""

    coverage_mean: float
    coverage_std: float
    size_mean: float
    size_std: float


@dataclass(frozen=True, eq=False)
class Ladder:
    """Class scores of each row in ascending order, ready for any draw of the uniforms.

    With a uniform U of the row, the class on rung k has the score rungs_k − U·drops_k, which ascends in k as well. The
    size of a set is therefore found by bisection, and no (n, c) array is made per split.

    Args:
        rungs: (n, c) ascending.
        drops: (n, c), or None where nothing is drawn.
        own: (n,) the rung of the true class.
    """

    rungs: Floats
    drops: Floats | None
    own: Counts

    @classmethod
    def of(cls, values: Floats, labels: ArrayLike, kind: Nonconformity | None) -> Self:
        """Sort each row once.

        Args:
            values: (n, c) class probabilities; class scores, larger = worse fit, if `kind` is None.
            labels: (n,) true classes.
            kind: how scores are made of probabilities; None takes class scores as they are.

        Raises:
            MetricError: values or labels that do not fit.
        """
        y = checked_labels(labels, values.shape)
        if kind is None:
            order = np.argsort(values, axis=1, kind="stable")
            rungs, drops = np.take_along_axis(values, order, axis=1), None
        else:
            order, ranked = kind.ranked(values)
            rungs, drops = kind.rungs(ranked), ranked if kind.draws else None
        return cls(rungs, drops, (order == y[:, None]).argmax(axis=1))

    def at(self, rows: Counts, rung: Counts, uniforms: Floats) -> Floats:
        """Return the scores of one rung of each of some rows, given the uniforms of all."""
        scores = self.rungs[rows, rung]
        return scores if self.drops is None else scores - uniforms[rows] * self.drops[rows, rung]

    def sizes(self, rows: Counts, quantile: float, uniforms: Floats) -> Counts:
        """Return how many classes of each of some rows have a score of at most `quantile`."""
        classes, found = self.rungs.shape[1], np.zeros(rows.size, dtype=np.int64)
        for step in (1 << bit for bit in reversed(range(classes.bit_length()))):
            tried = found + step
            inside = self.at(rows, np.minimum(tried, classes) - 1, uniforms) <= quantile
            found = np.where(inside & (tried <= classes), tried, found)
        return found


def over_splits(
    ladder: Ladder, calibration: int, alphas: Sequence[float], splits: int, seed: int
) -> dict[float, SplitReport]:
    """Return coverage and size over random splits, each with uniforms of its own, by miscoverage α.

    Args:
        ladder: the rows to split.
        calibration: rows in the calibration part; the others are tested.
        alphas: miscoverage levels in (0, 1).
        splits: how many, ≥ 2.
        seed: of the splits and the uniforms; equal for every kind of set, so that kinds meet the same splits.
    """
    n, found = ladder.own.size, np.empty((2, splits, len(alphas)))
    for split in range(splits):
        rng = np.random.default_rng([seed, split])
        order, uniforms = rng.permutation(n), rng.random(n)
        own, tested = ladder.at(np.arange(n), ladder.own, uniforms), order[calibration:]
        for column, alpha in enumerate(alphas):
            quantile = conformal_quantile(own[order[:calibration]], alpha)
            found[0, split, column] = np.mean(own[tested] <= quantile)
            found[1, split, column] = ladder.sizes(tested, quantile, uniforms).mean()
    means, deviations = found.mean(axis=1), found.std(axis=1)
    return {
        alpha: SplitReport(*(float(x[row, column]) for row in (0, 1) for x in (means, deviations)))
        for column, alpha in enumerate(alphas)
    }
