"""Conformal prediction sets of class-conditional scores: LAC, APS and RAPS, over one split or many."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError
from openbench.metrics.curve import Counts, Floats, as_scores, check_rate

KINDS: tuple[str, ...] = ("lac", "aps", "raps")  # made of class probabilities
OWN = "score"  # the method's class-conditional score: thresholded as it is, and as probabilities


class SetReport(NamedTuple):
    """Quality of prediction sets; fractions, except the mean number of classes per set."""

    coverage: float
    size: float
    singletons: float
    worst_class: float


@dataclass(frozen=True)
class Nonconformity:
    """The misfit of a class, from class probabilities.

    LAC: 1 − p_y. APS: Σ of the probabilities down to y, minus U·p_y. RAPS: APS + λ·max(rank_y − k_reg, 0).
    Here 1 is subtracted, which changes no set: −p_y, and −(the sum after y) instead of the sum down to y. Where a
    network is certain, sums near 1 would differ by rounding only, which depends on the processor.

    Args:
        kind: `lac`, `aps` or `raps`.
        penalty: λ of RAPS; the paper's CIFAR/ImageNet searches give 0.01 … 1.
        k_reg: rank from which RAPS penalises.

    Reference: Sadinle, Lei, Wasserman, JASA 2019, arXiv 1609.00451 (LAC); Romano, Sesia, Candès, NeurIPS 2020,
        arXiv 2006.02544 (APS); Angelopoulos, Bates, Jordan, Malik, ICLR 2021, arXiv 2009.14193 (RAPS).
    """

    kind: str = "lac"
    penalty: float = 0.01
    k_reg: int = 1

    @property
    def draws(self) -> bool:
        """Return whether U·p_y is subtracted."""
        return self.kind != "lac"

    def ascending(self, ranked: Floats) -> Floats:
        """Return (n, c) ascending scores at U = 0 of probabilities that descend in each row.

        Args:
            ranked: (n, c) sorted probabilities.
        """
        if not self.draws:
            return -ranked
        scores = np.zeros_like(ranked)
        np.cumsum(ranked[:, :0:-1], axis=1, out=scores[:, -2::-1])  # the sum after each class, smallest first
        np.negative(scores, out=scores)
        if self.kind == "raps":
            scores += self.penalty * np.maximum(np.arange(1, ranked.shape[1] + 1) - self.k_reg, 0)
        return scores


def distributions(probabilities: ArrayLike) -> Floats:
    """Return class probabilities (n, c), checked.

    Raises:
        MetricError: another shape, or rows that are not distributions.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.ndim != 2 or p.size == 0:
        raise MetricError(f"probabilities must have shape (n, c), one row per image — found {p.shape}")
    off = np.abs(p.sum(axis=1) - 1.0)
    if not (np.all(p >= 0) and np.all(off < 1e-3)):
        raise MetricError(f"probabilities are not distributions (sums off by {off.max():.3g}) — apply a softmax first")
    return p


def class_conditional(scores: ArrayLike) -> Floats:
    """Return class-conditional scores of a method, checked.

    Args:
        scores: (n, c) larger = worse fit; +inf for a class that never fits.

    Raises:
        MetricError: not two-dimensional, empty, or containing NaN.
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim != 2 or s.size == 0 or np.isnan(s).any():
        nan = int(np.isnan(s).sum())
        raise MetricError(f"class scores must have shape (n, c), without NaN — found {s.shape}, {nan} NaN")
    return s


def probabilities_from(scores: ArrayLike) -> Floats:
    """Return (n, c) softmax(−s) of class-conditional scores.

    Args:
        scores: (n, c) larger = worse fit; a class at +inf gets 0; if all classes are, each gets 1/c.

    Raises:
        MetricError: not two-dimensional, empty, or containing NaN.

    Reference: Novello, Dalmau, Andéol, 2024, arXiv 2403.11532, for prediction sets of OOD scores.
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
        found, most = f"shape {y.shape}, {y.dtype}", shape[1] - 1
        raise MetricError(f"labels do not fit the class scores ({found}) — allowed: integers in 0 … {most}")
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


def set_report(covered: NDArray[np.bool_], sizes: NDArray[np.int64], labels: NDArray[np.int64]) -> SetReport:
    """Return coverage, mean size, share of singletons, and the coverage of the class covered worst.

    Args:
        covered: (n,) whether a set holds the true class.
        sizes: (n,) classes per set.
        labels: (n,) true classes; classes without samples do not count.
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


class SetSplit(NamedTuple):
    """Rows to calibrate on, rows to test, and a uniform for every row."""

    calibration: Counts
    tested: Counts
    uniforms: Floats


@dataclass(frozen=True, eq=False)
class SortedClasses:
    """Class scores of each row in ascending order, for any draw of the uniforms.

    With the uniform U of its row, the k-th class has the score ascending_k − U·drops_k, which ascends in k as well:
    bisection gives the size of a set.

    Args:
        ascending: (n, c).
        drops: (n, c), or None without uniforms.
        ranks: (n,) the rank of the true class, from 0.
        labels: (n,) the true class.
    """

    ascending: Floats
    drops: Floats | None
    ranks: Counts
    labels: NDArray[np.int64]

    @classmethod
    def of_scores(cls, scores: ArrayLike, labels: ArrayLike) -> Self:
        """Sort class scores (n, c), larger = worse fit.

        Raises:
            MetricError: scores or labels that do not fit.
        """
        s = class_conditional(scores)
        y = checked_labels(labels, s.shape)
        return cls(np.sort(s, axis=1), None, _ranks(s, y), y)

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
        ranks = _ranks(fit, y)
        fit.sort(axis=1)
        descending = np.negative(fit, out=fit)
        for kind in kinds:
            yield cls(kind.ascending(descending), descending if kind.draws else None, ranks, y)

    def at(self, rows: Counts, ranks: Counts, uniforms: Floats) -> Floats:
        """Return the score at one rank of each of some rows, given the uniforms of all."""
        scores = self.ascending[rows, ranks]
        return scores if self.drops is None else scores - uniforms[rows] * self.drops[rows, ranks]

    def sizes(self, rows: Counts, quantile: float, uniforms: Floats) -> Counts:
        """Return the number of classes of some rows whose score is at most `quantile`."""
        classes, sizes = self.ascending.shape[1], np.zeros(rows.size, dtype=np.int64)
        for step in (1 << bit for bit in reversed(range(classes.bit_length()))):
            larger = sizes + step
            inside = self.at(rows, np.minimum(larger, classes) - 1, uniforms) <= quantile
            sizes = np.where(inside & (larger <= classes), larger, sizes)
        return sizes

    def reports(self, split: SetSplit, alphas: Sequence[float]) -> list[SetReport]:
        """Return the quality of the sets of one split at each miscoverage α."""
        calibration, tested = (
            self.at(rows, self.ranks[rows], split.uniforms) for rows in (split.calibration, split.tested)
        )
        reports = []
        for quantile in (conformal_quantile(calibration, alpha) for alpha in alphas):
            sizes = self.sizes(split.tested, quantile, split.uniforms)
            reports.append(set_report(tested <= quantile, sizes, self.labels[split.tested]))
        return reports


def _ranks(scores: Floats, labels: NDArray[np.int64]) -> Counts:
    """Return (n,) the number of classes before the true one; of equal scores the smaller class number is first."""
    true = scores[np.arange(labels.size), labels][:, None]
    earlier = (scores == true) & (np.arange(scores.shape[1]) < labels[:, None])
    return np.asarray((scores < true).sum(axis=1) + earlier.sum(axis=1))


def given_split(calibration: int, tested: int, seed: int) -> SetSplit:
    """Return the split into the first rows and the others; uniforms of the two parts are drawn separately."""
    uniforms = [np.random.default_rng(s).random(n) for s, n in ((seed, calibration), (seed + 1, tested))]
    rows = np.arange(calibration + tested)
    return SetSplit(rows[:calibration], rows[calibration:], np.concatenate(uniforms))


def over_splits(
    classes: SortedClasses, calibration: int, alphas: Sequence[float], splits: int, seed: int
) -> list[SplitReport]:
    """Return coverage and size over random splits, each with its own uniforms, at each miscoverage α.

    Args:
        classes: the rows to split.
        calibration: number of rows to calibrate on; the others are tested.
        alphas: miscoverage levels in (0, 1).
        splits: their number, ≥ 2.
        seed: of the splits and the uniforms; all kinds of sets share it, and so their splits.
    """
    n, values = classes.labels.size, []
    for number in range(splits):
        rng = np.random.default_rng([seed, number])
        order = rng.permutation(n)
        split = SetSplit(order[:calibration], order[calibration:], rng.random(n))
        values.append([(report.coverage, report.size) for report in classes.reports(split, alphas)])
    means, deviations = np.mean(values, axis=0).tolist(), np.std(values, axis=0).tolist()
    return [SplitReport(m[0], d[0], m[1], d[1]) for m, d in zip(means, deviations, strict=True)]
