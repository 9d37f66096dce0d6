"""Finite-sample corrections of conformal p-values: boundaries b with P(U_(i) ≤ b_i for all i) ≥ 1 − δ.

Exact crossing probabilities of order statistics of uniforms stand at the end.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import betaincinv, gammaln

from openbench.errors import MetricError, not_found
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


def asymptotic_constant(n: int, delta: float) -> float:
    """Return c_n(δ) = [−log(−log(1−δ)) + 2 log log n + ½ log log log n − ½ log π] / √(2 log log n).

    Args:
        n: number of calibration scores; below 16 the iterated logarithms are held at log log n = 1.
        delta: δ in (0, 1).
    """
    twice = max(1.0, float(np.log(np.log(max(n, 3)))))
    gumbel = -np.log(-np.log1p(-delta))
    return float((gumbel + 2 * twice + 0.5 * np.log(twice) - 0.5 * np.log(np.pi)) / np.sqrt(2 * twice))


def _refuse_small(n: int, correction: str) -> None:
    if n < 16:
        raise MetricError(f"correction '{correction}' needs n ≥ 16 (found n = {n}) — use 'monte_carlo'")


def _asymptotic(n: int, delta: float) -> Floats:
    _refuse_small(n, "asymptotic")
    i = np.arange(1, n + 1)
    return np.asarray(i / n + asymptotic_constant(n, delta) * np.sqrt(i * (n - i)) / (n * np.sqrt(n)))


def _shared_level(n: int) -> Callable[[float], Floats]:
    """Return level δ' → min(Simes(δ'/(4 − 3δ')), i/n + c_n(δ')·spread_i): both parts move with one level.

    The spread is √(i(n−i))/(n√n) up to i = n/2, then its tangent there, which is constant.
    Simes gets a quarter of the odds of δ'. At equal levels it would spend most of δ at the few smallest ranks, where it
    helps little, and every other bound would rise by a tenth.
    """
    k, i = max(1, n // 2), np.arange(1, n + 1)
    g, mean, lower = _log_simes(n, k), i / n, np.minimum(i, n / 2)
    spread = np.sqrt(lower * (n - lower)) / (n * np.sqrt(n))

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
    return family(n)(_level(family, n, delta))


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
    "dkwm": lambda n, delta: np.arange(1, n + 1) / n + np.sqrt(np.log(2 / delta) / (2 * n)),
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
        raise MetricError(not_found(f"correction '{correction}'", correction, CORRECTIONS))
    if n < 1:
        raise MetricError(f"a correction needs at least one calibration score — found n = {n}")
    return _table(int(n), float(delta), correction)


@lru_cache(maxsize=64)
def _table(n: int, delta: float, correction: str) -> Floats:
    table = np.append(_bounds(_FORMULAS[correction](n, delta)), 1.0)
    table.flags.writeable = False
    return table


_BLOCK = 1024  # steps whose Poisson kernels are tabulated together
_UNROLLED = 11
_SPREAD = 7.0  # standard deviations of the count above its mean; the rest (≈ 1e-12) counts as a crossing
_STEPPED = 100_000  # up to this size every count takes every step
_RUN, _SPLIT, _SHORT = 2048, 8, 32  # steps of the longest run, its number of parts, and steps taken one by one
_FAR = 8.0  # standard deviations of a Poisson kernel on either side
_CLOSE = 2e-3  # share of δ that may stay unspent
_MAX_STEPS = 60


def crossing_probability(bounds: Floats) -> float:
    """Return P(U_(i) > b_i for some i) for the order statistics of n independent uniforms.

    There is no crossing if the empirical count N(b_i) is at least i at every i. Counts of a Poisson process of rate n
    have independent increments, so a convolution with a Poisson kernel moves their distribution from b_i to b_{i+1},
    and mass below the boundary is dropped; conditioning on N(1) = n gives back the uniforms. Only O(√n) counts have
    mass, hence O(n^1.5) operations, and O(n log² n) for large n, where counts far from the boundary take many steps at
    once. The truncation errs towards a crossing, by less than 1e-9.

    Args:
        bounds: (n,) non-decreasing b_1 ≤ … ≤ b_n; values ≥ 1 never bind.

    Raises:
        MetricError: bounds that decrease or are negative or NaN.

    Reference: Noé, Ann. Math. Statist. 43 (1972), for the recursion; Khmaladze and Shinjikashvili, Ann. Appl. Probab.
        11 (2001), for the Poisson form.
    """
    b = np.asarray(bounds, dtype=np.float64)
    if b.size == 0 or not (b[0] >= 0 and np.all(np.diff(b) >= 0)):
        raise MetricError(f"crossing probability needs non-decreasing bounds ≥ 0 (the {b.size} values are not)")
    n, binding = b.size, int(np.searchsorted(b, 1.0))
    if binding == 0:
        return 0.0
    if n > _STEPPED:
        mass, first = _carried(n, b[:binding])
        return _crossed(mass, first, n, b[binding - 1])
    mass, first = np.ones(1), 0  # mass[j] = P(no crossing so far, N(b_i) = first + j)
    reach = np.minimum(n, np.ceil(n * b + _SPREAD * np.sqrt(n * b * (1 - np.minimum(b, 1))) + 12)).astype(np.int64)
    rates = n * np.diff(b[:binding], prepend=0.0)
    for start, stop in _blocks(binding):
        kernels, lengths = _poisson_kernels(rates[start:stop])
        for i in range(start, stop):
            moved = _convolved(mass, kernels[i - start, : lengths[i - start]])
            mass = moved[i + 1 - first : reach[i] + 1 - first]
            first = i + 1
            if mass.size == 0:
                return 1.0
    return _crossed(mass, first, n, b[binding - 1])


def _crossed(mass: Floats, first: int, n: int, last: float) -> float:
    """Return the crossing probability from the mass at the last binding bound, conditioned on N(1) = n."""
    rest = n * (1.0 - last)
    missing = n - first - np.arange(mass.size)
    to_end = np.exp(missing * np.log(rest) - rest - gammaln(missing + 1) + n - n * np.log(n) + gammaln(n + 1))
    return float(min(1.0, max(0.0, 1.0 - np.dot(mass, to_end))))


def _carried(n: int, b: Floats) -> tuple[Floats, int]:
    """Return the mass at the last of the binding bounds b, and its first count, in O(n log² n) operations.

    Over k steps, only counts less than k above the boundary can fall below it. They take the k steps in shorter runs,
    by the same argument; one convolution moves all other counts over the k steps.
    """
    times, mass = n * np.append(0.0, b), np.ones(1)
    reach = np.minimum(n, np.ceil(times + _SPREAD * np.sqrt(times * (1 - np.append(0.0, b))) + 12)).astype(np.int64)
    for start in range(0, b.size, _RUN):
        run = times[start : start + _RUN + 1]
        kernels, lengths = _poisson_kernels(np.diff(run))
        steps = [kernel[:length] for kernel, length in zip(kernels, lengths.tolist(), strict=True)]
        stop = start + len(steps)
        mass = _run(mass, steps, run) if start else _stepped(mass, steps, int(reach[stop]) + 1)
        mass = mass[: max(0, reach[stop] + 1 - stop)]
    return mass, b.size


def _stepped(mass: Floats, steps: Sequence[Floats], most: int) -> Floats:
    """Return the mass after every step; each drops the lowest count and all beyond `most`."""
    for kernel in steps:
        if not mass.size:
            break
        mass = np.convolve(mass, kernel)[1:most]
    return mass


def _run(mass: Floats, steps: Sequence[Floats], times: Floats) -> Floats:
    """Return the mass after the steps from times[0] to times[-1]; mass[0] belongs to the lowest allowed count."""
    k, rate = len(steps), float(times[-1] - times[0])
    low, free = mass[:k], mass[k:]
    if k <= _SHORT:
        low = _stepped(low, steps, int(rate + _FAR * np.sqrt(rate)) + 2 * k + 12)
    else:
        step = -(-k // _SPLIT)
        for at in range(0, k, step):
            low = _run(low, steps[at : at + step], times[at : at + step + 1])
    if not free.size:
        return low
    moved = _spread_out(free, rate)
    if moved.size < low.size:
        moved = np.append(moved, np.zeros(low.size - moved.size))
    moved[: low.size] += low
    return moved


def _spread_out(mass: Floats, rate: float) -> Floats:
    """Return the mass after a Poisson number of events, by FFT where that is faster."""
    low, high = max(0, int(rate - _FAR * np.sqrt(rate) - 9)), int(rate + _FAR * np.sqrt(rate) + 12)
    count = np.arange(low, high)
    kernel = np.exp(count * np.log(rate) - rate - gammaln(count + 1.0)) if rate > 0 else np.equal(count, 0.0)
    moved = np.zeros(mass.size + high - 1)
    if min(mass.size, kernel.size) < 96:
        moved[low:] = np.convolve(mass, kernel)
    else:
        padded = next_fast_len(moved.size - low, real=True)
        moved[low:] = irfft(rfft(mass, padded) * rfft(kernel, padded), padded)[: moved.size - low]
    return moved


def _blocks(steps: int) -> Iterable[tuple[int, int]]:
    """Return blocks of 0 … steps, short ones first: the first gaps are the widest and need the longest kernels."""
    return pairwise([0, *(e for e in (1, 16, 128) if e < steps), *range(_BLOCK, steps, _BLOCK), steps])


def _convolved(mass: Floats, kernel: Floats) -> Floats:
    """Return np.convolve(mass, kernel), in parts of a length for which numpy has unrolled loops: three times faster."""
    if kernel.size > 2 * _UNROLLED or mass.size < kernel.size:
        return np.convolve(mass, kernel)
    moved = np.zeros(mass.size + kernel.size - 1)
    for start in range(0, kernel.size, _UNROLLED):
        part = np.convolve(mass, kernel[start : start + _UNROLLED])
        moved[start : start + part.size] += part
    return moved


def _poisson_kernels(rates: Floats) -> tuple[Floats, np.ndarray]:
    """Return (r, k) Poisson probabilities of 0 … k−1 events, and (r,) lengths beyond which they sum to < 1e-9."""
    lengths = np.ceil(rates + 7.0 * np.sqrt(rates) + 9).astype(np.int64)
    lengths[rates == 0] = 1
    count = np.arange(int(lengths.max()))
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.where(count > 0, count * np.log(rates)[:, None], 0.0)
    return np.exp(powers - rates[:, None] - gammaln(count + 1.0)), lengths


def calibrate(boundary: Callable[[float], Floats], delta: float, start: float, close: float = _CLOSE) -> float:
    """Return a level whose boundary is crossed with probability in [(1 − close)·δ, δ], never above δ.

    This is a bracketed secant search: the odds of level and crossing are nearly proportional.

    Args:
        boundary: level ∈ (0, 1) → (n,) bounds; a larger level gives lower bounds.
        delta: δ ∈ (0, 1).
        start: first level.
        close: the share of δ that may stay unspent.

    Raises:
        MetricError: no level was found.
    """
    safe: tuple[float, float] | None = None
    unsafe: tuple[float, float] | None = None
    aim = _logit(delta * (1.0 - 0.5 * close))
    x = _logit(start)
    for _ in range(_MAX_STEPS):
        level = 1.0 / (1.0 + np.exp(-x))
        spent = crossing_probability(boundary(level))
        if (1.0 - close) * delta <= spent <= delta:
            return float(level)
        y = _logit(spent) - aim
        if spent <= delta:
            safe = (x, y)
        else:
            unsafe = (x, y)
        if safe is None or unsafe is None:  # a unit slope, until both sides are known
            x -= float(np.clip(1.2 * y, -3.0, 3.0))
        else:  # the secant inside the bracket
            (x0, y0), (x1, y1) = safe, unsafe
            x = x0 + float(np.clip(-y0 / (y1 - y0), 0.02, 0.98)) * (x1 - x0)
    raise MetricError(f"no boundary is crossed with probability {delta} (the last: {spent:.3g}) — choose another")


def _logit(probability: float) -> float:
    inside = min(max(probability, 1e-300), 1.0 - 1e-15)
    return float(np.log(inside) - np.log1p(-inside))
