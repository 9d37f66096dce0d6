"""Mahalanobis distance after a radial scaling of the features."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.products import by_rows
from openbench.core.request import Field, Request, Role
from openbench.methods._inputs import training
from openbench.methods._stats import moments, whitening


@dataclass
class ScaledMDS(Method):
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
        m = moments(training(train, "ScaledMDS"), "ScaledMDS", lambda rows: self._scaled(rows.features.double()))
        whiten, center = whitening(m.within_covariance()), m.mean()
        self.center_ = center.float()
        self.whiten_ = whiten.float()
        self.means_ = ((m.class_means() - center) @ whiten).float()
        self.present_ = m.present.cpu()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return self._distances(x).amin(dim=1)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the squared distance to each class mean, (n, c) float32; +inf for classes absent from training."""
        distances = self._distances(x)
        by_class = distances.new_full((len(x), len(self.present_)), float("inf"))
        by_class[:, self.present_.to(by_class.device)] = distances
        return by_class

    def _distances(self, x: FeatureSet) -> Tensor:
        """|w − m|² (n, k) in whitened coordinates for the k classes present."""
        moved = self._scaled(x.features) - self.learnt("center_").to(x.features.device)
        white = by_rows(moved, self.learnt("whiten_").to(moved.device).T)
        means = self.learnt("means_").to(moved.device)
        # One small product instead of a difference per class.
        return white.square().sum(dim=1, keepdim=True) + means.square().sum(dim=1) - 2 * white @ means.T

    def _scaled(self, features: Tensor) -> Tensor:
        """φ (n, d), in the dtype of the features; powers of lengths are taken in float64, whose range they keep."""
        lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True, dtype=torch.float64)
        factor = torch.where(lengths > 0, lengths.clamp(min=torch.finfo(lengths.dtype).tiny) ** -self.beta, 0.0)
        return (features * factor).to(features.dtype)
