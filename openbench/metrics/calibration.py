"""Calibration of a classifier: ECE, Brier score and negative log-likelihood of its class probabilities."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from openbench.errors import MetricError
from openbench.metrics.curve import Counts, Floats

BINS = 15
_LEAST = float(np.finfo(np.float32).tiny)
_GAPS = 201  # calibration errors that are tried for an interval
_AT_ONCE = 1 << 22  # numbers of images that are drawn at a time


def equal_width(confidence: Floats) -> Counts:
    """Return (n,) the bin of each confidence among 15 of equal width; one at an edge belongs to the bin below."""
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def equal_mass(confidence: Floats) -> Counts:
    """Return (n,) the bin of each confidence among at most 15 of equally many images; equal confidences share one."""
    last = np.arange(1, BINS) * confidence.size // BINS - 1
    return np.searchsorted(np.sort(confidence)[np.maximum(last, 0)], confidence, side="left")


def _binned(confidence: ArrayLike, correct: ArrayLike, bins: Counts) -> tuple[Floats, Floats, Floats]:
    """The number of images, mean confidence and accuracy of each bin that has images."""
    counts = np.bincount(bins)
    filled = counts > 0
    sums = (np.bincount(bins, np.asarray(of, np.float64)) for of in (confidence, correct))
    return (counts[filled].astype(np.float64), *(of[filled] / counts[filled] for of in sums))  # type: ignore[return-value]


def ece(confidence: ArrayLike, correct: ArrayLike, bins: Counts) -> float:
    """Return the expected calibration error, Σ_b (n_b/n)·|accuracy_b − confidence_b| over bins of images.

    `ece` of a record has 15 bins of equal width, as most papers do; `ece_equal_mass` has 15 of equally many images, so
    that saturated confidences are not all in one bin.

    Args:
        confidence: (n,) the largest class probability.
        correct: (n,) 0/1.
        bins: (n,) from `equal_width` or `equal_mass`.

    Reference: Guo, Pleiss, Sun, Weinberger, ICML 2017, arXiv 1706.04599; Nixon et al., CVPR Workshops 2019,
        arXiv 1904.01685, for equal mass.
    """
    n, mean, accuracy = _binned(confidence, correct, bins)
    return float(n @ np.abs(accuracy - mean) / n.sum())


def debiased_ece(confidence: ArrayLike, correct: ArrayLike, bins: Counts) -> float:
    """Return ECE less its bias, Σ_b (n_b/n)·(2·|d_b| − E|N(d_b, σ_b²)|), but at least 0.

    With few images a perfectly calibrated classifier has an ECE too, since |d_b| of a noisy d_b = accuracy − confidence
    is too large. By how much follows from the plug-in distribution with σ_b² = accuracy·(1 − accuracy)/n_b, whose mean
    absolute value is σ·√(2/π)·exp(−d²/2σ²) + d·erf(d/σ√2).

    Args:
        confidence: (n,) the largest class probability.
        correct: (n,) 0/1.
        bins: (n,) from `equal_mass`.

    Reference: Kumar, Liang, Ma, "Verified uncertainty calibration", NeurIPS 2019, arXiv 1909.10155; their library draws
        from this distribution, here its mean is exact.
    """
    n, mean, accuracy = _binned(confidence, correct, bins)
    d, deviation = np.abs(accuracy - mean), np.sqrt(accuracy * (1 - accuracy) / n)
    ratio = np.divide(d, deviation, out=np.full_like(d, np.inf), where=deviation > 0)
    noisy = deviation * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + d * erf(ratio / np.sqrt(2))
    return max(0.0, float(n @ (2 * d - noisy) / n.sum()))


def brier(probabilities: Floats, labels: Counts) -> Floats:
    """Return (n,) the Brier score of each image, Σ_c (p_c − [c is its class])², from 0 to 2.

    Args:
        probabilities: (n, c) class probabilities.
        labels: (n,) class indices.

    Reference: Brier, Monthly Weather Review 78 (1950), who sums over classes; some libraries halve it.
    """
    return np.asarray((probabilities**2).sum(axis=1) + 1.0 - 2.0 * _of_class(probabilities, labels))


def negative_log_likelihood(probabilities: Floats, labels: Counts) -> Floats:
    """Return (n,) −log of the probability of each image's class.

    A probability below the smallest normal float32, 1.2e-38, counts as that: a zero is a rounded one.

    Args:
        probabilities: (n, c) class probabilities.
        labels: (n,) class indices.
    """
    return np.asarray(-np.log(np.maximum(_of_class(probabilities, labels), _LEAST)))


def _of_class(probabilities: Floats, labels: Counts) -> Floats:
    return np.asarray(np.take_along_axis(probabilities, labels[:, None], axis=1)[:, 0])


def calibration(
    probabilities: ArrayLike, labels: ArrayLike, level: float = 0.95, replicates: int = 0, seed: int = 0
) -> dict[str, float]:
    """Return ECE, Brier score and negative log-likelihood, with intervals of those that are not biased.

    Intervals of `brier` and `nll` are percentiles over images drawn with replacement. ECE is larger on images drawn so,
    the more the better the classifier is calibrated, and such an interval misses the truth. That of `ece_debiased` has
    every calibration error t, equal in all bins, for which the measured equal-mass ECE lies between the percentiles of
    Σ_b (n_b/n)·|t + N(0, σ_b²)|.

    Args:
        probabilities: (n, c) class probabilities.
        labels: (n,) class indices.
        level: of the intervals.
        replicates: how often images are drawn; 0 for no interval.
        seed: of the draws, which do not depend on the order of the images.

    Raises:
        MetricError: a label is not one of the classes.

    Reference: Efron and Tibshirani, "An introduction to the bootstrap", 1993, chapter 13, for percentiles.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.int64)
    if y.size == 0 or y.min() < 0 or y.max() >= p.shape[1]:
        raise MetricError(f"labels of ID test must be classes from 0 to {p.shape[1] - 1} — found others, or none")
    confidence, correct = p.max(axis=1), (p.argmax(axis=1) == y).astype(np.float64)
    bins = equal_mass(confidence)
    values = {
        "ece": ece(confidence, correct, equal_width(confidence)),
        "ece_equal_mass": ece(confidence, correct, bins),
        "ece_debiased": debiased_ece(confidence, correct, bins),
    }
    means = {"brier": brier(p, y), "nll": negative_log_likelihood(p, y)}
    values |= {key: float(each.mean()) for key, each in means.items()}
    if not replicates:
        return values
    rows = np.column_stack([*means.values()])
    drawn = np.concatenate([*_drawn(rows[np.lexsort(rows.T)], replicates, seed)]) / y.size
    tails = [(1 - level) / 2, (1 + level) / 2]
    ends = {key: np.quantile(each, tails) for key, each in zip(means, drawn.T, strict=True)}
    noise = np.random.default_rng(seed).standard_normal((replicates, BINS))
    ends["ece_debiased"] = _ece_interval(confidence, correct, bins, tails, noise)
    return values | {
        f"{key}_{end}": float(pair[at]) for key, pair in ends.items() for at, end in enumerate(("low", "high"))
    }


def _ece_interval(confidence: Floats, correct: Floats, bins: Counts, tails: list[float], noise: Floats) -> Floats:
    """The least and the largest gap t, equal in all bins, with whose noise the ECE measured is between the tails."""
    n, mean, accuracy = _binned(confidence, correct, bins)
    share, deviation = n / n.sum(), np.sqrt(accuracy * (1 - accuracy) / n)
    measured = share @ np.abs(accuracy - mean)
    gaps = np.linspace(0.0, measured + 5 * (share @ deviation), _GAPS)
    likely = np.abs(gaps[:, None, None] + deviation * noise[:, : n.size]) @ share
    low, high = np.quantile(likely, tails, axis=1)
    inside = gaps[(low <= measured) & (measured <= high)]
    if inside.size:
        return np.array([inside[0], inside[-1]])
    # Without noise, as where every image is classified correctly, no gap on the grid but the measured one fits.
    return np.full(2, measured if low[0] <= measured else 0.0)


def _drawn(rows: Floats, replicates: int, seed: int) -> Iterator[Floats]:
    """The sums (r, k) over n rows (n, k) drawn with replacement, for some of the replicates at a time."""
    n, rng = len(rows), np.random.default_rng(seed)
    some = max(1, _AT_ONCE // n)
    for first in range(0, replicates, some):
        of = np.arange(min(some, replicates - first))[:, None]
        drawn = rng.integers(0, n, (of.size, n)) + n * of
        yield np.bincount(drawn.ravel(), minlength=of.size * n).reshape(of.size, n) @ rows
