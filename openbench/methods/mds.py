"""Mahalanobis distance to the nearest class mean."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Request, Role
from openbench.methods._bases import NearestMean
from openbench.methods._stats import moments, plain_features, row_normalise, training, unit_features


@dataclass
class MDS(NearestMean):
    """Squared Mahalanobis distance to the nearest class mean, one covariance shared by all classes.

    score(x) = min_c (f − μ_c)ᵀ Σ⁺ (f − μ_c), Σ the biased covariance of training features around their class means.

    Args:
        normalise: whether features are scaled to unit length first, in training and in testing; False is MDS, True is
            MDS++ of Müller & Hein.

    Raises:
        MethodError: no training split; NaN, negative labels, or features that do not vary within classes.

    Reference: Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks,
    NeurIPS 2018, arXiv 1807.03888. Penultimate features only and no input step, as in OpenOOD's `mds`; Σ⁺ is a
    pseudo-inverse, so that constant or duplicated features do no harm.
    `normalise`: Müller & Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025,
    arXiv 2505.18032.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = (
        "Lee et al., NeurIPS 2018, arXiv 1807.03888; ++: Müller & Hein, ICML 2025, arXiv 2505.18032"
    )

    normalise: bool = False

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class means and the shared covariance from training features (n, d) and labels (n,)."""
        vectors = unit_features if self.normalise else plain_features
        self._learn(moments(training(train, "MDS"), "MDS", vectors))
        return self

    def _vectors(self, x: FeatureSet) -> Tensor:
        return row_normalise(x.features) if self.normalise else x.features
