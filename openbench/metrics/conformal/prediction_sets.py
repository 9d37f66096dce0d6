"""Conformal prediction sets from any class-conditional score: LAC, APS and RAPS, and what to report about them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError, did_you_mean
from openbench.metrics.curve import Floats, as_scores, check_rate

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
