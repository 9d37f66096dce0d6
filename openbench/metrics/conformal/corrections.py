"""Finite-sample corrections of conformal p-values: boundaries b with P(U_(i) ≤ b_i for all i) ≥ 1 − δ."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import betaincinv, gammaln

from openbench.errors import MetricError, did_you_mean
from openbench.metrics.conformal._crossing import calibrate
from openbench.metrics.curve import Floats, check_rate

_SMALL = 1000  # beyond this size the search starts from the level at n/8, which takes a twentieth of the time
_LARGE, _LOOSE = 100_000, 1e-2  # above this size a larger share of δ may stay unspent, for fewer trials
_FINE = 2e-4  # share of δ that may stay unspent up to 8·_SMALL, whose levels are the first guesses of larger sizes


def _log_simes(n: int, k: int) -> Floats:
    """Return (n,) g_i with Simes' bound b_i = 1 − exp(log(δ)/k + g_i); −inf where the bound is 1.

    g is (1/k) log of j(j−1)…(j−k+1) / (n(n−1)…(n−k+1)) at j = n + 1 − i.
    """
    j = np.arange(n, 0, -1)
    g = np.full(n, -np.inf)
    some = j >= k
    falling = gammaln(j[some] + 1.0) - gammaln(j[some] - k + 1.0)
    g[some] = (falling - (gammaln(n + 1.0) - gammaln(n - k + 1.0))) / k
    return g


def _simes(n: int, delta: float) -> Floats:
    k = max(1, n // 2)
    return np.asarray(-np.expm1(np.log(delta) / k + _log_simes(n, k)))


def _dkwm(n: int, delta: float) -> Floats:
    return np.asarray(np.arange(1, n + 1) / n + np.sqrt(np.log(2 / delta) / (2 * n)))


def _iterated_logs(n: int) -> tuple[float, float]:
    """Return log log n and log log log n, both replaced by their values at log log n = 1 for smaller n."""
    twice = max(1.0, float(np.log(np.log(max(n, 3)))))
    return twice, float(np.log(twice))


def asymptotic_constant(n: int, delta: float) -> float:
    """Return c_n(δ) = [−log(−log(1−δ)) + 2 log log n + ½ log log log n − ½ log π] / √(2 log log n).

    Args:
        n: number of calibration scores; below 16 the iterated logarithms are held at log log n = 1.
        delta: δ in (0, 1).
    """
    twice, thrice = _iterated_logs(n)
    gumbel = -np.log(-np.log1p(-delta))
    return float((gumbel + 2 * twice + 0.5 * thrice - 0.5 * np.log(np.pi)) / np.sqrt(2 * twice))


def _refuse_small(n: int, correction: str) -> None:
    if n < 16:
        raise MetricError(
            f"correction '{correction}' needs n ≥ 16, where log log log n is positive (found n = {n}) — use "
            "'monte_carlo' or 'equal_local_level'"
        )


def _asymptotic(n: int, delta: float) -> Floats:
    _refuse_small(n, "asymptotic")
    i = np.arange(1, n + 1)
    return np.asarray(i / n + asymptotic_constant(n, delta) * np.sqrt(i * (n - i)) / (n * np.sqrt(n)))


def _bridge_spread(n: int) -> Floats:
    """Return (n,) √(i(n−i))/(n√n) up to i = n/2, then its tangent there, which is constant."""
    i = np.minimum(np.arange(1, n + 1), n / 2)
    return np.asarray(np.sqrt(i * (n - i)) / (n * np.sqrt(n)))


def _shared_level(n: int) -> Callable[[float], Floats]:
    """Return level δ' → min(Simes(δ'/(4 − 3δ')), i/n + c_n(δ')·spread_i): both parts move with one level.

    Simes gets a quarter of the odds of δ'. At equal levels it would spend most of δ at the few smallest ranks, where it
    helps little, and every other bound would rise by a tenth.
    """
    k = max(1, n // 2)
    g, mean, spread = _log_simes(n, k), np.arange(1, n + 1) / n, _bridge_spread(n)

    def boundary(level: float) -> Floats:
        curved = mean + max(0.0, asymptotic_constant(n, level)) * spread
        return _bounds(np.minimum(-np.expm1(np.log(level / (4 - 3 * level)) / k + g), curved))

    return boundary


def _equal_local(n: int) -> Callable[[float], Floats]:
    """Return level η → the Beta(i, n+1−i) quantiles at 1 − η: every order statistic crosses with probability η."""
    i = np.arange(1, n + 1)
    return lambda level: np.asarray(_bounds(1.0 - betaincinv(n + 1.0 - i, i, level)))


def _bounds(raw: Floats) -> Floats:
    """Cut at 1 and make non-decreasing, which can only raise a bound and so keeps it valid."""
    return np.asarray(np.maximum.accumulate(np.minimum(raw, 1.0)))


def _calibrated(family: Callable[[int], Callable[[float], Floats]], n: int, delta: float) -> Floats:
    """Return the boundary of `family` that is crossed with probability δ, exactly computed."""
    boundary = family(n)
    return boundary(_level(family, n, delta))


@lru_cache(maxsize=256)
def _level(family: Callable[[int], Callable[[float], Floats]], n: int, delta: float) -> float:
    if n <= _SMALL:
        return calibrate(family(n), delta, 0.7 * delta, _FINE)
    start = _level(family, n // 8, delta)
    # The first guess, fitted to calibrated levels up to n = 45,000: the shared level hardly moves, the local one falls
    # like 1/(log n · (log log n)^1.2). Other constants end at other levels within the tolerance: they change records.
    logs = np.log([n // 8, n])
    local = float(np.divide(*(logs * np.log(logs) ** 1.2))) * (1 + 0.0013 * float(np.log(delta)))
    shared = 0.9985 if n <= _LARGE else 1.009
    drift = shared if family is _shared_level else local
    close = (_FINE,) if n <= 8 * _SMALL else (_LOOSE,) if n > _LARGE else ()
    return calibrate(family(n), delta, drift * start, *close)


def _published(n: int, delta: float) -> Floats:
    """Return min(Simes(δ), i/n + c_n(δ)·spread_i), the spread continued linearly from its last two values up to n/2.

    This is the authors' Monte Carlo bound at γ = 0, which gives their figures. Their code subtracts a simulated γ from
    the δ of the curved part; but Simes alone spends δ, so for large n the draw decides whether any is left: at
    n = 9,000, over five simulations of 10,000 samples, the correction at FPR .5 was 3.8 to 4.5 points for δ = .01
    (published: 2.2), 2.2 to 4.5 for .05 (1.8) and 2.0 to 4.5 for .1.
    """
    _refuse_small(n, "monte_carlo_published")
    half, i = n // 2, np.arange(1, n + 1)
    spread = np.sqrt(i * (n - i)) / (n * np.sqrt(n))
    spread[half:] = spread[half - 1] + (i[half:] - half) * (spread[half - 1] - spread[half - 2])
    return np.asarray(np.minimum(_simes(n, delta), i / n + asymptotic_constant(n, delta) * spread))


_FORMULAS: dict[str, Callable[[int, float], Floats]] = {
    "none": lambda n, delta: np.arange(1, n + 1) / (n + 1),
    "simes": _simes,
    "dkwm": _dkwm,
    "asymptotic": _asymptotic,
    "monte_carlo": lambda n, delta: _calibrated(_shared_level, n, delta),
    "monte_carlo_published": _published,
    "equal_local_level": lambda n, delta: _calibrated(_equal_local, n, delta),
}
CORRECTIONS: tuple[str, ...] = tuple(_FORMULAS)
# Corrections whose p-values hold with probability ≥ 1 − δ for every number of calibration scores.
FINITE_SAMPLE: tuple[str, ...] = ("monte_carlo", "equal_local_level", "simes", "dkwm")


def correction_table(n: int, delta: float, correction: str = "monte_carlo") -> Floats:
    """Return the read-only table b_1 … b_{n+1} (b_{n+1} = 1) that corrects an integer rank K = (n+1)·p to h(p) = b_K.

    `none` gives the marginal p-value K/(n+1). `simes`, `dkwm`, `monte_carlo` and `equal_local_level` hold for every n
    with probability ≥ 1 − δ over the calibration set. `asymptotic` holds in the limit: at n = 9,000 and δ = 0.01 it
    fails with probability 0.0128. `monte_carlo_published` reproduces published figures; at n = 9,000 it fails with
    probability 0.0178 at δ = 0.01, 0.0674 at 0.05 and 0.1273 at 0.1.

    `monte_carlo` has the published shape, min(Simes, curved bound with a linear upper half), with one level behind
    both parts, set by the exact crossing probability instead of by simulation. `equal_local_level` spreads δ evenly
    over the order statistics.

    Args:
        n: number of calibration scores.
        delta: δ in (0, 1), the probability that the calibration set is an unlucky one.
        correction: one of CORRECTIONS.

    Raises:
        MetricError: n < 1, δ outside (0, 1), an unknown correction, or `asymptotic` with n < 16.

    Reference: Bates, Candès, Lei, Romano, Sesia, "Testing for outliers with conformal p-values", Ann. Statist. 2023,
        arXiv 2104.08279; Berk and Jones (1979) for equal local levels.
    """
    check_rate(delta, "δ", closed=False)
    if correction not in _FORMULAS:
        raise MetricError(
            f"correction '{correction}' not found{did_you_mean(correction, CORRECTIONS)} — choose from "
            f"{', '.join(CORRECTIONS)}"
        )
    if n < 1:
        raise MetricError(f"a correction needs at least one calibration score — found n = {n}")
    return _table(int(n), float(delta), correction)


@lru_cache(maxsize=64)
def _table(n: int, delta: float, correction: str) -> Floats:
    table = np.append(_bounds(_FORMULAS[correction](n, delta)), 1.0)
    table.flags.writeable = False
    return table
