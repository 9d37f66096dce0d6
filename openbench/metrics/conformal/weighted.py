"""Conformal p-values under a known covariate shift, and the smallest sets of scores from which an α can be reached."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.errors import MetricError
from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.curve import Floats, as_scores, check_rate

_MOST = 10_000_000  # calibration scores up to which a size is looked for


def as_weights(weights: ArrayLike, n: int, where: str = "weights") -> Floats:
    """Return weights (n,), checked.

    Args:
        weights: (n,) density ratios, positive, up to a common factor.
        n: how many there must be.
        where: their name in messages.

    Raises:
        MetricError: another number of them, or one that is not positive and finite.
    """
    try:
        w = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MetricError(f"{where} are not numbers — {error} — ({n},) positive, finite numbers expected") from error
    if w.shape != (n,) or not np.all(np.isfinite(w)) or not np.all(w > 0):
        raise MetricError(f"{where} have shape {w.shape} — ({n},) positive, finite numbers expected, one per score")
    return w


def weighted_p_values(calibration: ArrayLike, scores: ArrayLike, weights: ArrayLike, own: ArrayLike) -> Floats:
    """Return (m,) p-values that hold if inputs come with a density w(x) times that of the calibration images.

    p(x) = (w(x) + Σ_i w_i 1[s_i ≥ s(x)]) / (w(x) + Σ_i w_i); with equal weights the marginal p-value K/(n+1).

    Args:
        calibration: (n,) ID scores not used for training, larger = more OOD.
        scores: (m,) scores to judge.
        weights: (n,) w of the calibration images, up to a common factor.
        own: (m,) w of the inputs to judge, with the same factor.

    Raises:
        MetricError: invalid scores or weights.

    Reference: Tibshirani, Barber, Candès, Ramdas, NeurIPS 2019, arXiv 1904.06019; as p-values in Jin and Candès, 2023,
        arXiv 2307.09291, here without their random tie-breaking, which can only make p larger.
    """
    known, asked = as_scores(calibration, "calibration scores"), as_scores(scores, "scores")
    w, w_own = as_weights(weights, known.size), as_weights(own, asked.size, "weights of the scores to judge")
    order = np.argsort(known, kind="stable")
    return weighted_p_values_of_sorted(known[order], asked, np.append(0.0, np.cumsum(w[order])), w_own)


def weighted_p_values_of_sorted(ordered: Floats, scores: NDArray[np.floating], below: Floats, own: Floats) -> Floats:
    """Return the same from ascending calibration scores (n,) and the sums (n+1,) of the weights before each."""
    reached = below[-1] - below[np.searchsorted(ordered, scores, side="left")]
    return np.asarray((own + np.maximum(reached, 0.0)) / (own + below[-1]))


def marginal_size(alpha: float) -> int:
    """Return the smallest n for which a marginal p-value can be α or less: 1/(n+1) ≤ α.

    Raises:
        MetricError: α outside (0, 1).
    """
    return int(np.ceil(1.0 / check_rate(alpha, "α", closed=False) - 1e-9)) - 1


def conditional_size(alpha: float, delta: float, correction: str) -> int:
    """Return the smallest n for which a calibration-conditional p-value can be α or less: b_1 ≤ α.

    Args:
        alpha: in (0, 1).
        delta: δ in (0, 1).
        correction: one of CORRECTIONS.

    Raises:
        MetricError: a value out of range, or no n up to ten million.
    """
    low = high = max(marginal_size(alpha), 1)
    while correction_table(high, delta, correction)[0] > alpha:
        low, high = high + 1, high * 2
        if high > _MOST:
            raise MetricError(
                f"correction '{correction}' at δ = {delta:g} does not reach α = {alpha:g} with {_MOST:,} calibration "
                "scores — choose a larger α, or 'monte_carlo'"
            )
    while low < high:
        middle = (low + high) // 2
        if correction_table(middle, delta, correction)[0] > alpha:
            low = middle + 1
        else:
            high = middle
    return high
