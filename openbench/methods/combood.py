"""Nearest neighbours and Mahalanobis distance combined."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._bank import Bank
from openbench.methods._stats import FIT_BATCH, inverse_spread, moments, row_normalise, training, unit_features

_CLOSEST = 1e-12  # squared distances below it are rounding, and the logarithm of 0 is not a number
# Bounds between which the likelihood is searched; far outside [−2, 4] a feature has one value but for a few samples.
_GRID = (-16.0, -8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0, 18.0)
_GOLDEN = (5**0.5 - 1) / 2
_STEPS = 26
_LARGEST = 1e12  # of a transformed value: its square summed over features stays a float32
_CELLS = 2048  # on each side of 0


@dataclass
class CombOOD(Method):
    """Logarithm of the distance to the k-th neighbour plus the squared Mahalanobis distance of normalised features.

    score(x) = √d log ‖f̂ − f̂₍k₎‖² + gᵀ (Σ + I)⁻¹ g, f̂ = f/‖f‖, f̂₍k₎ the k-th nearest training sample, g the entries of f̂
    brought to normal shape by Yeo and Johnson's transform and then to mean 0 and standard deviation 1, Σ their
    covariance.

    Args:
        k: which neighbour; 50 by default.

    Raises:
        MethodError: k < 1, fewer than k training samples, NaN, or training features that are all equal.

    Reference: Rajasekaran et al., COMBOOD: A Semiparametric Approach for Detecting Out-of-distribution Data for Image
    Classification, SDM 2024, arXiv 2602.07042. Both distances see the penultimate feature, one of the combinations in
    the authors' code; their tables take the Mahalanobis distance of the least and largest activation of every layer
    instead. Exponents are kept within −16 to 18.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Rajasekaran et al., SDM 2024, arXiv 2602.07042"

    k: Count = 50

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn the transform and the covariance of training features (n, d), and keep them where they are."""
        train = training(train, "CombOOD")
        self.require(self.k <= len(train), "k", f"1 to {len(train)}, the number of training samples")
        self.bank_ = Bank(train.features, unit=True)
        plain = moments(train, "CombOOD", unit_features, by_class=False)
        self.center_, self.scale_ = plain.mean(), inverse_spread(plain.mean(), plain.total_covariance())

        standard = (self._standard(rows.features) for rows in train.batches(FIT_BATCH))
        exponents = best_exponents(standard, len(train))
        # A feature that does not vary has no shape.
        self.exponents_ = torch.where(self.scale_.cpu() > 0, exponents, 1.0).to(self.scale_.device)
        shaped = moments(train, "CombOOD", lambda rows: self._shaped(rows.features), by_class=False)
        covariance = shaped.total_covariance()
        inverse = inverse_spread(shaped.mean(), covariance)
        correlation = covariance * inverse * inverse[:, None] * (len(train) / max(1, len(train) - 1))
        identity = torch.eye(len(inverse), dtype=torch.float64, device=inverse.device)
        factor = torch.linalg.cholesky(correlation + identity)
        self.mean_ = shaped.mean()
        self.whiten_ = inverse[:, None] * torch.linalg.solve_triangular(factor, identity, upper=False).T
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        whiten = self.learnt("whiten_").to(x.features.device)
        far = self.bank_.kth_squared_distance(row_normalise(x.features), self.k).double().clamp(min=_CLOSEST).log()
        white = by_rows(self._shaped(x.features) - self.mean_.to(whiten.device), whiten.T)
        return (math.sqrt(len(whiten)) * far + white.square().sum(dim=1)).float()

    def _standard(self, features: Tensor) -> Tensor:
        """(n, d) float64, unit length, then mean 0 and standard deviation 1 over training samples."""
        unit = row_normalise(features.double())
        return (unit - self.center_.to(unit.device)) * self.scale_.to(unit.device)

    def _shaped(self, features: Tensor) -> Tensor:
        return yeo_johnson(self._standard(features), self.exponents_.to(features.device))


def yeo_johnson(x: Tensor, exponents: Tensor) -> Tensor:
    """Return ((1 + x)^λ − 1)/λ for x ≥ 0 and −((1 − x)^(2−λ) − 1)/(2 − λ) for x < 0, logarithms at 0 and 2, (n, d)."""
    power, logs = torch.where(x >= 0, exponents, 2 - exponents), torch.log1p(x.abs())
    return _value(x, logs, power, torch.expm1(power * logs)).clamp(-_LARGEST, _LARGEST)


def best_exponents(batches: Iterable[Tensor], n: int) -> Tensor:
    """Return the λ (d,) in [−16, 18] under which each transformed feature is most likely normal.

    The likelihood is −n/2 log var ψ + (λ − 1) Σ sign(x) log(1 + |x|), searched on a grid, then by golden sections. It
    is read off a histogram of sign(x) log(1 + |x|), in whose cells values count by their number, mean and variance: ψ
    is expanded to second order around each mean, which moves λ by less than the search leaves open.

    Args:
        batches: (k, d) float64 parts of n samples whose features have mean 0 and standard deviation 1, or are all 0.
        n: number of samples.

    Reference: Yeo & Johnson, A new family of power transformations to improve normality or symmetry, Biometrika 2000.
    """
    table = _Histograms.of(batches, n)
    d = table.mean.shape[1]
    like = torch.stack([table.likelihood(torch.full((d,), g).double()) for g in _GRID])
    best = like.argmax(dim=0)
    grid = torch.tensor(_GRID, dtype=torch.float64)
    low, high = grid[(best - 1).clamp(min=0)], grid[(best + 1).clamp(max=len(grid) - 1)]
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = table.likelihood(left), table.likelihood(right)
    for _ in range(_STEPS):
        lower = at_left > at_right  # the maximum lies left of `right`
        low, high = torch.where(lower, low, left), torch.where(lower, right, high)
        probe = torch.where(lower, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_probe = table.likelihood(probe)
        left, right = torch.where(lower, probe, right), torch.where(lower, left, probe)
        at_left, at_right = torch.where(lower, at_probe, at_right), torch.where(lower, at_left, at_probe)
    return (low + high) / 2


@dataclass(frozen=True)
class _Histograms:
    """Histograms of u = sign(x) log(1 + |x|), float64 on the CPU.

    Args:
        share: (cells, d) share of the samples in each cell.
        mean: (cells, d) of u in the cell.
        variance: (cells, d) of u in the cell.
    """

    share: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, batches: Iterable[Tensor], n: int) -> "_Histograms":
        """Fill the cells in one pass; no cell holds values of both signs, at whose border ψ has no third derivative."""
        # A value of n with standard deviation 1 cannot exceed √n.
        width = math.log1p(math.sqrt(n)) / (_CELLS - 1)
        sums = torch.zeros(3, 0)
        for x in batches:
            d = x.shape[1]
            u = x.sign() * torch.log1p(x.abs()) / width
            cell = u.floor().clamp_(-_CELLS, _CELLS - 1)
            place = ((cell.long() + _CELLS) * d + torch.arange(d, device=x.device)).reshape(-1)
            offset = (u - cell - 0.5).reshape(-1)  # from the middle: sums of small numbers keep their digits
            size = 2 * _CELLS * d
            parts = [torch.bincount(place, weight, size) for weight in (None, offset, offset.square())]
            sums = torch.stack([p.double() for p in parts]).cpu() + (sums if sums.numel() else 0.0)
        count, first, second = sums.reshape(3, 2 * _CELLS, -1)
        middle = (torch.arange(-_CELLS, _CELLS, dtype=torch.float64) + 0.5)[:, None]
        used = count.sum(dim=1) > 0
        count, first, second, middle = count[used], first[used], second[used], middle[used]
        mean = first / count.clamp(min=1)
        variance = second / count.clamp(min=1) - mean.square()
        return cls(count / n, (middle + mean) * width, variance.clamp(min=0) * width**2)

    def likelihood(self, exponents: Tensor) -> Tensor:
        """Log-likelihood per sample (d,) of exponents (d,); meaningless where a feature does not vary."""
        u, power = self.mean, torch.where(self.mean >= 0, exponents, 2 - exponents)
        grown = torch.expm1(power * u.abs())
        value = _value(u, u.abs(), power, grown)
        # The derivatives of ψ by u are e^(power·|u|) and ±power e^(power·|u|), and 0 where ψ is cut.
        slope = torch.where(value.abs() <= _LARGEST, grown + 1, 0.0)
        value = value.clamp(-_LARGEST, _LARGEST) + u.sign() * power * slope * self.variance / 2
        center = (self.share * value).sum(dim=0)
        spread = (self.share * ((value - center).square() + slope.square() * self.variance)).sum(dim=0)
        tilt = (self.share * u).sum(dim=0)
        return (exponents - 1) * tilt - spread.log() / 2


def _value(x: Tensor, logs: Tensor, power: Tensor, grown: Tensor) -> Tensor:
    """The transform of x with log(1 + |x|) and (1 + |x|)^power − 1, which keeps its digits for small powers."""
    return x.sign() * torch.where(power == 0, logs, grown / torch.where(power == 0, 1.0, power))
