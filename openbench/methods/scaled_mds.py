"""Mahalanobis distance after a radial scaling of the features."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core import FeatureSet, Field, Head, Request, Role
from openbench.methods._bases import NearestMean
from openbench.methods._stats import moments, training


@dataclass
class ScaledMDS(NearestMean):
    """Squared Mahalanobis distance to the nearest class mean, of features divided by a power of their length.

    score(x) = min_c (φ − μ_c)ᵀ Σ⁺ (φ − μ_c), φ = f/‖f‖^β, Σ the biased covariance of training φ around class means.

    Args:
        beta: β ≥ 0; 0 is `mds`, 1 is `mds_pp`. Lengths of φ are those of f to the power 1 − β.

    Raises:
        MethodError: no training split; NaN, negative labels, or features that do not vary within classes.

    Reference: Janiak et al., A Geometry-Based View of Mahalanobis OOD Detection, 2025, arXiv 2510.15202. The paper
    chooses β per network, from the spectrum and the local dimension of ID features; here it is searched on validation.
    Σ⁺ is a pseudo-inverse; a feature of zeros stays zero.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Janiak et al., 2025, arXiv 2510.15202"

    beta: NonNegative = 1.0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class means and the shared covariance from training features (n, d) and labels (n,)."""
        fitted = training(train, "ScaledMDS")
        self._learn(moments(fitted, "ScaledMDS", lambda rows: self._scaled(rows.features.double())))
        return self

    def _vectors(self, x: FeatureSet) -> Tensor:
        return self._scaled(x.features)

    def _scaled(self, features: Tensor) -> Tensor:
        """φ (n, d), in the dtype of the features; powers of lengths are taken in float64, whose range they keep."""
        lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True, dtype=torch.float64)
        factor = torch.where(lengths > 0, lengths.clamp(min=torch.finfo(lengths.dtype).tiny) ** -self.beta, 0.0)
        return (features * factor).to(features.dtype)
