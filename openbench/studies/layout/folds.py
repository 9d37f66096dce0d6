"""How far the FPR of conformal p-values moves with the calibration images: folds of the ID scores, and its law."""

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from openbench.errors import MetricError

FOLDS = 53  # as in the paper
ALPHA = 0.05  # p-values up to it are flagged
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FoldRates:
    """The FPR of each calibration fold.

    Args:
        rates: (folds,) ascending: the share of the other folds' images with p ≤ α.
        n: calibration images of a fold.
        rank: ⌊α(n+1)⌋.
    """

    rates: Floats
    n: int
    rank: int

    @property
    def expected(self) -> float:
        """The mean of the law, rank/(n+1)."""
        return self.rank / (self.n + 1)

    def law(self, rate: Floats) -> Floats:
        """Return the probability that a fold has at most a rate: that of Beta(rank, n+1−rank)."""
        return np.asarray(beta.cdf(rate, self.rank, self.n + 1 - self.rank))


def fold_rates(scores: ArrayLike) -> FoldRates:
    """Return the FPR over 53 disjoint folds of ID images, drawn with seed 0, each of which calibrates for the others.

    p = (1 + #{calibration scores ≥ s})/(n+1) is at most α where s is above the ⌊α(n+1)⌋-th largest of the fold.

    Args:
        scores: (m,) of ID images.

    Raises:
        MetricError: a fold would have fewer than 1/α − 1 images.

    Reference: Novello et al., "Out-of-distribution detection should use conformal prediction", 2024, arXiv 2403.11532;
        the law is Vovk's, 2012, arXiv 1209.2673. The paper has folds of 10,000 images, here n = ⌊m/53⌋.
    """
    found = np.asarray(scores, float)
    n = len(found) // FOLDS
    rank = floor(ALPHA * (n + 1))
    if rank == 0:
        raise MetricError(f"{len(found)} ID scores in {FOLDS} folds — at least {round(1 / ALPHA) - 1} each are needed")
    drawn = np.random.default_rng(0).permutation(found)[: n * FOLDS].reshape(FOLDS, n)
    bounds = np.partition(drawn, n - rank, axis=1)[:, n - rank]
    rates = [(np.delete(drawn, at, axis=0) > bound).mean() for at, bound in enumerate(bounds)]
    return FoldRates(np.sort(rates), n, rank)
