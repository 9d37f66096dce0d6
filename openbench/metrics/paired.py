"""Whether two scores of the same images differ in AUROC by more than chance: DeLong's paired comparison."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from openbench.errors import MetricError
from openbench.metrics.curve import Floats, as_scores, check_rate, placements


class PairedDifference(NamedTuple):
    """How much larger the first score's AUROC is, or its mean over OOD sets, and how sure that is.

    `low` and `high` are the ends of the interval of the difference; `p` is two-sided, for equal AUROC.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p: float


def paired_delong(
    first: tuple[ArrayLike, Sequence[ArrayLike]], second: tuple[ArrayLike, Sequence[ArrayLike]], level: float = 0.95
) -> PairedDifference:
    """Return the difference of two AUROCs on the same images, or of two means over OOD sets that share the ID images.

    With the placements of an image under a score (of an ID image: the share u of OOD above it; of an OOD image: the
    share v of ID below it; ties count ½) and their differences d between the two scores,
    Var = S(mean over sets of d_u) / n + Σ over sets of S(d_v) / m_s / k², k sets, S(·) the unbiased variance;
    interval = difference ± z·√Var, p = 2Φ(−|difference| / √Var). For one set this is DeLong's comparison. The sets
    are correlated through the ID images that they share, which is why u is averaged before its variance is taken.
    Where no placement differs, Var is 0: p is then 1 for equal AUROCs and 0 otherwise.

    Args:
        first: scores (n,) of the ID images, and of each OOD set (m_s,); larger = more OOD.
        second: another score of the same images in the same order.
        level: coverage of the interval, in (0, 1).

    Raises:
        MetricError: no OOD set, sides of different size, NaN, or level out of range.

    Reference: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988), section 3; the mean over sets is a linear contrast
        of correlated areas, as there.
    """
    z = float(ndtri(0.5 + check_rate(level, "confidence level", closed=False) / 2))
    a, b = (_Side(np.asarray(ids), [np.asarray(ood) for ood in sets]) for ids, sets in (first, second))
    _check_same_sizes(a, b)
    of_id, variance, sets = np.zeros(len(a.ids)), 0.0, len(a.oods)
    areas = np.zeros((sets, 2))
    for at in range(sets):
        (u_a, v_a), (u_b, v_b) = a.placements(at), b.placements(at)
        areas[at] = v_a.mean(), v_b.mean()
        of_id += (u_a - u_b) / sets
        variance += _variance(v_a - v_b) / len(v_a) / sets**2
    variance += _variance(of_id) / len(of_id)
    one, other = (float(mean) for mean in areas.mean(axis=0))
    difference, deviation = one - other, float(np.sqrt(variance))
    low, high = max(-1.0, difference - z * deviation), min(1.0, difference + z * deviation)
    return PairedDifference(one, other, difference, low, high, _p(difference, deviation))


def _p(difference: float, deviation: float) -> float:
    """The two-sided p value of a difference with this standard deviation."""
    if not deviation:
        return 1.0 if difference == 0 else 0.0
    return 2.0 * float(ndtr(-abs(difference) / deviation))


class _Side(NamedTuple):
    """One score of all images."""

    ids: Floats
    oods: list[Floats]

    def placements(self, at: int) -> tuple[Floats, Floats]:
        """Return (n,) shares of the OOD set above each ID image and (m,) of ID below each OOD image, ties counted ½."""
        return placements(as_scores(self.ids, "ID scores"), as_scores(self.oods[at], "OOD scores"))


def _variance(values: Floats) -> float:
    """The unbiased variance; 0 for a single value."""
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


def _check_same_sizes(a: _Side, b: _Side) -> None:
    sizes = [(side.ids.size, *(ood.size for ood in side.oods)) for side in (a, b)]
    if sizes[0] != sizes[1] or not a.oods:
        raise MetricError(
            f"a paired comparison needs two scores of the same images, and an OOD set — found {sizes[0]} and "
            f"{sizes[1]} scores of ID and of each OOD set — score the same images in the same order"
        )
