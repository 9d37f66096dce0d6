"""How a number of ours differs from a published one, and whether other seeds could explain it."""

from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from scipy.stats import t as student

from openbench.results.tables.render import Estimate

_CONFIDENCE = 0.95
Sample = tuple[Estimate, int]  # a mean over runs, and how many


class Verdict(StrEnum):
    """What is known of a difference; the value is how a table marks it."""

    ROUNDING = "="  # no larger than rounding of what is printed
    WITHIN = "~"  # no larger than seeds differ
    BEYOND = "*"  # larger than seeds differ
    UNKNOWN = "?"  # nothing is known of how seeds differ


@dataclass(frozen=True)
class Difference:
    """Ours less the published figure.

    Args:
        value: the difference.
        verdict: what is known of it.
    """

    value: float
    verdict: Verdict


def difference(ours: Sample, published: Sample, rounding: float) -> Difference:
    """Return the difference of two means over runs, by Welch's test where both deviations are known.

    Beyond the spread is |d| > t(.975, ν)·√(s²/R + s'²/R') + rounding, where s and s' are the deviations over runs
    (R − 1 in the denominator) and ν Welch and Satterthwaite's degrees of freedom. Where only one deviation is known, it
    stands for both, and ν is that of its runs.

    Args:
        ours: a mean over runs with its population deviation, if that is known, and how many runs there are.
        published: likewise.
        rounding: half a unit of the last printed digit.

    Reference: Welch, Biometrika 34 (1947).
    """
    gap = ours[0].value - published[0].value
    if abs(gap) <= rounding * (1 + 1e-9):
        return Difference(gap, Verdict.ROUNDING)
    limit = _limit(*_variance(*ours), *_variance(*published))
    if limit is None:
        return Difference(gap, Verdict.UNKNOWN)
    return Difference(gap, Verdict.WITHIN if abs(gap) <= limit + rounding else Verdict.BEYOND)


def _variance(mean: Estimate, runs: int) -> tuple[float | None, int]:
    """The variance over runs with R − 1 in the denominator, None without a deviation; and R."""
    if mean.std is None or runs < 2:
        return None, runs
    return mean.std**2 * runs / (runs - 1), runs


def _limit(first: float | None, runs: int, second: float | None, others: int) -> float | None:
    """How far two means may be apart by chance; None where no deviation is known."""
    if first is None and second is None:
        return None
    a, b = ((one if one is not None else other or 0.0) for one, other in ((first, second), (second, first)))
    a, b = a / runs, b / others
    if a + b == 0.0:
        return 0.0
    if first is not None and second is not None:
        freedom = (a + b) ** 2 / (a * a / (runs - 1) + b * b / (others - 1))
    else:
        freedom = (runs if first is not None else others) - 1
    return float(student.ppf((1 + _CONFIDENCE) / 2, freedom)) * sqrt(a + b)
