"""Exact crossing probabilities of order statistics of uniforms, and boundaries with a given one."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import gammaln

from openbench.errors import MetricError
from openbench.metrics.curve import Floats

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
        raise MetricError(
            f"crossing probability needs (n,) non-decreasing bounds ≥ 0 (the {b.size} values are not) — pass b_1 … b_n "
            "in order"
        )
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


def _blocks(steps: int) -> list[tuple[int, int]]:
    """Return blocks of 0 … steps, short ones first: the first gaps are the widest and need the longest kernels."""
    edges = [0, *(e for e in (1, 16, 128) if e < steps), *range(_BLOCK, steps, _BLOCK), steps]
    return list(pairwise(edges))


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
        x = _next(x, y, safe, unsafe)
    raise MetricError(
        f"no boundary is crossed with probability {delta} (of {_MAX_STEPS} levels, the last {level:.3g} spends "
        f"{spent:.3g}) — use another correction"
    )


def _logit(probability: float) -> float:
    inside = min(max(probability, 1e-300), 1.0 - 1e-15)
    return float(np.log(inside) - np.log1p(-inside))


def _next(x: float, y: float, safe: tuple[float, float] | None, unsafe: tuple[float, float] | None) -> float:
    """Return the next logit: by a unit slope until both sides are known, then by the secant inside the bracket."""
    if safe is None or unsafe is None:
        return x - float(np.clip(1.2 * y, -3.0, 3.0))
    (x0, y0), (x1, y1) = safe, unsafe
    share = float(np.clip(-y0 / (y1 - y0), 0.02, 0.98))
    return x0 + share * (x1 - x0)
