"""Yeo and Johnson's power transform, its exponents chosen for all features at once in passes over batches."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Bounds between which the likelihood is searched; far outside [−2, 4] a feature has one value but for a few samples.
_GRID = (-16.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 18.0)
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 26
_LARGEST = 1e12  # of a transformed value: its square summed over features stays a float32

Batches = Callable[[], Iterator[Tensor]]  # starts a new pass over (n, d) float64 batches


def yeo_johnson(x: Tensor, exponents: Tensor) -> Tensor:
    """Return ((1 + x)^λ − 1)/λ for x ≥ 0 and −((1 − x)^(2−λ) − 1)/(2 − λ) for x < 0, logarithms at 0 and 2, (n, d)."""
    power = torch.where(x >= 0, exponents, 2 - exponents)
    logs = torch.log1p(x.abs())
    # expm1 keeps the digits that (1 + x)^λ − 1 loses for small powers.
    curved = torch.expm1(power * logs) / torch.where(power == 0, 1.0, power)
    found: Tensor = x.sign() * torch.where(power == 0, logs, curved)
    return found.clamp(-_LARGEST, _LARGEST)


def best_exponents(batches: Batches) -> Tensor:
    """Return the λ (d,) in [−16, 18] under which each transformed feature is most likely normal.

    The likelihood is −n/2 log var ψ + (λ − 1) Σ sign(x) log(1 + |x|), searched on a grid, then by golden sections.

    Reference: Yeo & Johnson, A new family of power transformations to improve normality or symmetry, Biometrika 2000.
    """
    tilt, d = _tilt(batches)
    like = torch.stack([_likelihood(batches, torch.full((d,), g).double(), tilt) for g in _GRID])
    best = like.argmax(dim=0)
    grid = torch.tensor(_GRID, dtype=torch.float64)
    low, high = grid[(best - 1).clamp(min=0)], grid[(best + 1).clamp(max=len(grid) - 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = _likelihood(batches, left, tilt), _likelihood(batches, right, tilt)
    for _ in range(_STEPS):
        lower = at_left > at_right  # the maximum lies left of `right`
        low, high = torch.where(lower, low, left), torch.where(lower, right, high)
        probe = torch.where(lower, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_probe = _likelihood(batches, probe, tilt)
        left, right = torch.where(lower, probe, right), torch.where(lower, left, probe)
        at_left, at_right = torch.where(lower, at_probe, at_right), torch.where(lower, at_left, at_probe)
    return (low + high) / 2


def _tilt(batches: Batches) -> tuple[Tensor, int]:
    """Σ sign(x) log(1 + |x|) / n (d,), and d."""
    total, n = torch.zeros(1, dtype=torch.float64), 0
    for x in batches():
        total, n = total + (x.sign() * torch.log1p(x.abs())).sum(dim=0).cpu(), n + len(x)
    return total / n, len(total)


def _likelihood(batches: Batches, exponents: Tensor, tilt: Tensor) -> Tensor:
    """Log-likelihood per sample (d,), −inf where the transformed feature does not vary."""
    n, mean, squares = 0, torch.zeros_like(exponents), torch.zeros_like(exponents)
    for x in batches():
        y = yeo_johnson(x, exponents.to(x.device)).cpu()
        # Chan's update: sums of squares alone lose all digits of a spread far below the mean.
        step, m = y.mean(dim=0) - mean, len(y)
        squares = squares + (y - y.mean(dim=0)).square().sum(dim=0) + step.square() * (n * m / (n + m))
        mean, n = mean + step * (m / (n + m)), n + m
    return (exponents - 1) * tilt - (squares / n).log() / 2
