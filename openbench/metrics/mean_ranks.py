"""Whether methods differ over several data sets: mean ranks, Friedman's test and Nemenyi's critical difference."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2, rankdata, studentized_range

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, check_rate


class MeanRanks(NamedTuple):
    """Ranks of k methods, averaged over N sets, rank 1 the best.

    `ranks` (k,); two methods differ surely if their ranks lie further apart than `critical`; `p` is Friedman's, for all
    methods being equal; `sets` is N.
    """

    ranks: Floats
    critical: float
    p: float
    sets: int


def mean_ranks(values: ArrayLike, level: float = 0.95) -> MeanRanks:
    """Return the mean ranks of methods over sets, ties sharing the mean of their ranks.

    Critical difference: q·√(k(k + 1) / 6N), with q the studentized range of k means with infinite degrees of freedom at
    the level, divided by √2. Friedman: χ² = 12N/(k(k + 1)) · (Σ R² − k(k + 1)²/4), with k − 1 degrees of freedom.

    The sets are taken for a sample of all sets that might have been asked, so this says what to expect on another set;
    how sure an order is on these sets, `rank_ranges` says.

    Args:
        values: (k, N) larger = better.
        level: one minus the family-wise error rate, in (0, 1).

    Raises:
        MetricError: fewer than two methods or sets, or NaN.

    Reference: Demšar, Journal of Machine Learning Research 7 (2006), sections 3.2.2 and 3.2.4.
    """
    check_rate(level, "level", closed=False)
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or min(found.shape) < 2 or np.isnan(found).any():
        raise MetricError(
            f"mean ranks need a number of each method on each set — found shape {found.shape}"
            f"{' with NaN' if np.isnan(found).any() else ''} — at least two methods and two sets"
        )
    k, n = found.shape
    ranks = rankdata(-found, axis=0).mean(axis=1)
    q = float(studentized_range.ppf(level, k, np.inf)) / np.sqrt(2.0)
    statistic = 12.0 * n / (k * (k + 1)) * (float((ranks**2).sum()) - k * (k + 1) ** 2 / 4)
    return MeanRanks(ranks, q * float(np.sqrt(k * (k + 1) / (6.0 * n))), float(chi2.sf(statistic, k - 1)), n)


def bars(found: MeanRanks) -> list[list[int]]:
    """Return the longest groups of methods, by mean rank, whose ranks lie within the critical difference.

    Groups of one, and groups within another, are left out: they are the bars of a critical-difference picture.
    """
    order = [int(at) for at in np.argsort(found.ranks, kind="stable")]
    groups: list[list[int]] = []
    for start, first in enumerate(order):
        group = [at for at in order[start:] if found.ranks[at] - found.ranks[first] <= found.critical]
        if len(group) > 1 and not (groups and set(group) <= set(groups[-1])):
            groups.append(group)
    return groups
