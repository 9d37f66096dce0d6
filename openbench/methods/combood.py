"""Nearest neighbours and Mahalanobis distance combined."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.products import by_rows
from openbench.core.request import Field, Request, Role
from openbench.methods._bank import Bank
from openbench.methods._inputs import training
from openbench.methods._stats import FIT_BATCH, moments, row_normalise, unit_features
from openbench.methods._yeo_johnson import best_exponents, yeo_johnson

_CLOSEST = 1e-12  # squared distances below it are rounding, and the logarithm of 0 is not a number
_CONSTANT = 1e-6  # a spread below this part of the mean is the rounding of float32


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
        self.center_, self.scale_ = plain.mean(), _inverse_spread(plain.mean(), plain.total_covariance())

        standard = (self._standard(rows.features) for rows in train.batches(FIT_BATCH))
        exponents = best_exponents(standard, len(train))
        # A feature that does not vary has no shape.
        self.exponents_ = torch.where(self.scale_.cpu() > 0, exponents, 1.0).to(self.scale_.device)
        shaped = moments(train, "CombOOD", lambda rows: self._shaped(rows.features), by_class=False)
        covariance = shaped.total_covariance()
        inverse = _inverse_spread(shaped.mean(), covariance)
        correlation = covariance * inverse * inverse[:, None] * (len(train) / max(1, len(train) - 1))
        factor = torch.linalg.cholesky(
            correlation + torch.eye(len(inverse), dtype=torch.float64, device=inverse.device)
        )
        identity = torch.eye(len(inverse), dtype=torch.float64, device=inverse.device)
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


def _inverse_spread(mean: Tensor, covariance: Tensor) -> Tensor:
    """1/σ (d,), 0 where a feature does not vary."""
    spread = covariance.diagonal().clamp(min=0).sqrt()
    varies = spread > _CONSTANT * mean.abs()
    return torch.where(varies, 1 / torch.where(varies, spread, 1.0), 0.0)
