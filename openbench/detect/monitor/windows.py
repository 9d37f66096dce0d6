"""One window of a stream beside the calibration set: how far apart the two are, for people to look at."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ks_2samp, mannwhitneyu

from openbench.detect.monitor.ranks import Cells


@dataclass(frozen=True)
class Window:
    """Some consecutive images against the calibration images, by two-sample tests.

    The p-values hold for this window alone. They are looked at many times in a life and raise no alarm: alarms come
    from the martingale.

    Args:
        first: number of its first image, counted from 1.
        images: how many.
        flagged: share of them with p ≤ α.
        auroc: share of pairs of a window's and a calibration image in which the window's score is larger, ties ½; 0.5
            if nothing has changed.
        rank_p: two-sided p-value of Mann and Whitney's test of 0.5.
        distance: largest difference of the two distribution functions (Kolmogorov and Smirnov).
        distance_p: two-sided p-value of no difference.
    """

    first: int
    images: int
    flagged: float
    auroc: float
    rank_p: float
    distance: float
    distance_p: float


def window_of(first: int, found: NDArray[np.int64], cells: Cells, alpha: float) -> Window:
    """Return the window of images that fell into the cells `found`.

    Args:
        first: number of the first image.
        found: (w,) cells.
        cells: of the calibration set.
        alpha: p-values at or below it count as flagged.
    """
    calibration = np.repeat(np.arange(cells.held.size), cells.held)
    at_or_above = cells.n - np.concatenate([[0], np.cumsum(cells.held)])[found]
    # Whole numbers: (K)/(n + 1) ≤ α with K = at_or_above + 1, where storing a decimal α rounds it.
    flagged = at_or_above + 1 <= alpha * (1 + 1e-12) * (cells.n + 1)
    ranks = mannwhitneyu(found, calibration, alternative="two-sided", method="asymptotic")
    steps = ks_2samp(found, calibration, method="asymp")
    constant = bool((found == found[0]).all() and (calibration == found[0]).all())
    return Window(
        first=first,
        images=int(found.size),
        flagged=float(flagged.mean()),
        auroc=float(ranks.statistic) / (found.size * cells.n),
        rank_p=1.0 if constant else float(ranks.pvalue),
        distance=float(steps.statistic),
        distance_p=float(steps.pvalue),
    )
