"""Conformal prediction sets from any class-conditional score: LAC, APS and RAPS, over one split or many."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError, did_you_mean
from openbench.metrics.curve import Counts, Floats, as_scores, check_rate

KINDS: tuple[str, ...] = ("lac", "aps", "raps")  # made of class probabilities
OWN = "score"  # the OOD method's own class-conditional score: thresholded as it is, and as probabilities


class SetReport(NamedTuple):
    """Quality of prediction sets; fractions, except the mean number of classes per set."""

    coverage: float
    mean_size: float
    singletons: float
    worst_class_coverage: float


@dataclass(frozen=True)
class Nonconformity:
    """How badly a class fits an input, from class probabilities.

    LAC: 1 − p_y. APS: Σ of the probabilities down to y, minus U·p_y. RAPS: APS + λ·max(rank_y − k_reg, 0).
    All are less 1, which moves no set: −p_y, and for the sum −(what is left after y), as each row sums to 1. A sum near
    1 has sixteen digits, of float32 probabilities seven, and where a network is sure the classes of a set differ in
    smaller ones: there rounding, and with it the processor, would choose.

    Args:
        kind: `lac`, `aps` or `raps`.
        penalty: λ of RAPS; the paper's CIFAR/ImageNet searches give 0.01 … 1.
        k_reg: rank from which RAPS penalises.
        seed: of the uniforms U, one per input, shared by its classes.

    Reference: Sadinle, Lei, Wasserman, JASA 2019, arXiv 1609.00451 (LAC); Romano, Sesia, Candès, NeurIPS 2020,
        arXiv 2006.02544 (APS); Angelopoulos, Bates, Jordan, Malik, ICLR 2021, arXiv 2009.14193 (RAPS).
    """

    kind: str = "lac"
    penalty: float = 0.01
    k_reg: int = 1
    seed: int = 0

    def __call__(self, probabilities: ArrayLike) -> Floats:
        """Return (n, c) scores less 1, larger = worse fit.

        Args:
            probabilities: (n, c) rows summing to 1.

        Raises:
            MetricError: unknown kind, a negative penalty or rank, or rows that are not distributions.
        """
        if not self.draws:
            return -self._checked(probabilities)
        p = self._checked(probabilities)
        order = np.argsort(-p, axis=1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=1)
        drawn = self.ascending(ranked) - np.random.default_rng(self.seed).random((len(p), 1)) * ranked
        scores = np.empty_like(drawn)
        np.put_along_axis(scores, order, drawn, axis=1)
        return scores

    @property
    def draws(self) -> bool:
        """Whether U·p_y is subtracted."""
        return self.kind != "lac"

    def ascending(self, ranked: Floats) -> Floats:
        """Return (n, c) the scores at U = 0 of probabilities that descend in each row; they ascend there.

        Args:
            ranked: (n, c) sorted probabilities.
        """
        if not self.draws:
            return -ranked
        less = np.zeros_like(ranked)
        np.cumsum(ranked[:, :0:-1], axis=1, out=less[:, -2::-1])  # what is left after each class, smallest first
        np.negative(less, out=less)
        if self.kind == "raps":
            less += self.penalty * np.maximum(np.arange(1, ranked.shape[1] + 1) - self.k_reg, 0)
        return less

    def _checked(self, probabilities: ArrayLike) -> Floats:
        if self.kind not in KINDS:
            raise MetricError(
                f"prediction set '{self.kind}' not found{did_you_mean(self.kind, KINDS)} — choose from "
                f"{', '.join(KINDS)}"
            )
        if not (self.penalty >= 0 and self.k_reg >= 0):
            raise MetricError(f"RAPS needs λ ≥ 0 and k_reg ≥ 0 — found {self.penalty}, {self.k_reg} — raise them")
        return distributions(probabilities)


def distributions(probabilities: ArrayLike) -> Floats:
    """Return class probabilities (n, c), checked.

    Raises:
        MetricError: another shape, or rows that are not distributions.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.size == 0:
        raise MetricError(f"probabilities must have shape (n, c) — found {p.shape} — pass one row per image")
    off = np.abs(p.sum(axis=1) - 1.0)
    if not (np.all(p >= 0) and np.all(off < 1e-3)):
        raise MetricError(
            f"probabilities are not distributions — smallest entry {p.min()}, row sums off by up to {off.max():.3g} — "
            "rows ≥ 0 that sum to 1 are needed — apply a softmax to logits first"
        )
    return p


def class_conditional(scores: ArrayLike) -> Floats:
    """Return a method's own class-conditional scores, checked.

    Args:
        scores: (n, c) larger = worse fit; +inf is a class that never fits.

    Raises:
        MetricError: not two-dimensional, empty, or containing NaN.
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim != 2 or s.size == 0 or np.isnan(s).any():
        raise MetricError(
            f"class scores must have shape (n, c) without NaN — found {s.shape}, {int(np.isnan(s).sum())} NaN — pass "
            "one row per image"
        )
    return s


def probabilities_from(scores: ArrayLike) -> Floats:
    """Return (n, c) softmax(−s) of class-conditional scores.

    Args:
        scores: (n, c) larger = worse fit; a class at +inf gets 0; where all classes are, each gets 1/c.

    Raises:
        MetricError: not two-dimensional, empty, or containing NaN.

    Reference: Novello, Dalmau, Andéol, 2024, arXiv 2403.11532, who make prediction sets of OOD scores in this way.
    """
    fit = -np.clip(class_conditional(scores), -1e300, 1e300)
    fit -= fit.max(axis=1, keepdims=True)
    np.exp(fit, out=fit)
    return np.asarray(fit / fit.sum(axis=1, keepdims=True))


def checked_labels(labels: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return labels (n,) of scores of `shape` (n, c).

    Raises:
        MetricError: another length, or anything but integers in 0 … c−1.
    """
    y = np.asarray(labels)
    if y.shape != shape[:1] or y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= shape[1]:
        raise MetricError(
            f"labels do not fit the class scores — shape {y.shape}, dtype {y.dtype} for scores of shape {shape} — "
            f"integers in 0 … {shape[1] - 1}, one per row, are needed"
        )
    return y.astype(np.int64)


def conformal_quantile(scores: ArrayLike, alpha: float) -> float:
    """Return the ⌈(n+1)(1−α)⌉-th smallest calibration score, +inf if n is too small for α.

    Args:
        scores: (n,) non-conformity of the true classes of a calibration set.
        alpha: miscoverage in (0, 1).

    Raises:
        MetricError: invalid scores, or α out of range.
    """
    ordered = np.sort(as_scores(scores, "calibration non-conformity"))
    # (n+1)(1−α) may round up past an exact integer; 1e-9 is far below the spacing 1 of ranks.
    rank = int(np.ceil((ordered.size + 1) * (1.0 - check_rate(alpha, "α", closed=False)) - 1e-9))
    return float(ordered[rank - 1]) if rank <= ordered.size else float("inf")


def true_class(scores: Floats, labels: ArrayLike) -> Floats:
    """Return (n,) the score of each row's own label.

    Args:
        scores: (n, c) class-conditional scores, larger = worse fit.
        labels: (n,) integers in 0 … c−1.

    Raises:
        MetricError: labels that do not fit.
    """
    y = checked_labels(labels, scores.shape)
    return np.asarray(scores[np.arange(y.size), y])


def prediction_sets(scores: Floats, quantile: float) -> NDArray[np.bool_]:
    """Return (n, c) bool, the classes whose score does not exceed the calibrated quantile.

    Args:
        scores: (n, c) class-conditional scores of test inputs.
        quantile: from `conformal_quantile`.
    """
    return np.asarray(scores <= quantile)


def set_report(sets: NDArray[np.bool_], labels: ArrayLike) -> SetReport:
    """Return coverage, mean size, share of singletons, and the coverage of the class covered worst.

    Args:
        sets: (n, c) bool.
        labels: (n,) true classes; classes without samples do not count as covered badly.

    Raises:
        MetricError: labels that do not fit.
    """
    y = checked_labels(labels, sets.shape)
    return report_of(sets[np.arange(y.size), y], sets.sum(axis=1), y)


def report_of(covered: NDArray[np.bool_], sizes: NDArray[np.int64], labels: NDArray[np.int64]) -> SetReport:
    """Return the report of sets, given whether each holds the true class and how many classes it holds.

    Args:
        covered: (n,) bool.
        sizes: (n,) classes per set.
        labels: (n,) true classes, checked.
    """
    per_class, hits = np.bincount(labels), np.bincount(labels, weights=covered)
    worst = float((hits[per_class > 0] / per_class[per_class > 0]).min())
    return SetReport(float(covered.mean()), float(sizes.mean()), float((sizes == 1).mean()), worst)


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
