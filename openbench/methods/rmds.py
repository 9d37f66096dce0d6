"""Relative Mahalanobis distance."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.errors import NotApplicableError
from openbench.methods._bases import to_means
from openbench.methods._stats import moments, plain_features, row_normalise, training, unit_features, whitening


@dataclass
class RMDS(Method):
    """Squared Mahalanobis distance to the nearest class mean, less the one to the mean of all training features.

    score(x) = min_c (f − μ_c)ᵀ Σ⁺ (f − μ_c) − (f − μ)ᵀ Σ₀⁺ (f − μ), Σ the biased covariance around class means, Σ₀ the
    one around the overall mean μ.

    Args:
        normalise: whether features are scaled to unit length first, in training and in testing; False is RMDS, True is
            RMDS++ of Müller & Hein.

    Raises:
        MethodError: no training split; NaN, negative labels, or features that do not vary within classes.
        NotApplicableError: a single class has samples.

    Reference: Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, ICML workshop 2021,
    arXiv 2106.09022. Pseudo-inverses, so that constant or duplicated features do no harm. `normalise`: Müller & Hein,
    Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025, arXiv 2505.18032.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = (
        "Ren et al., ICML workshop 2021, arXiv 2106.09022; ++: Müller & Hein, ICML 2025, arXiv 2505.18032"
    )

    normalise: bool = False

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class means and both covariances from training features (n, d) and labels (n,), in one pass."""
        vectors = unit_features if self.normalise else plain_features
        m = moments(training(train, "RMDS"), "RMDS", vectors)
        if int(m.present.sum()) < 2:
            raise NotApplicableError("RMDS.fit: with a single class all scores would be 0 — choose method=mds")
        within, total, center = whitening(m.within_covariance()), whitening(m.total_covariance()), m.mean()
        self.center_ = center.float()
        self.within_ = within.float()
        self.total_ = total.float()
        self.means_ = ((m.class_means() - center) @ within).float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        features = row_normalise(x.features) if self.normalise else x.features
        centred = features - self.learnt("center_").to(features.device)
        white = by_rows(centred, self.within_.to(centred.device).T)
        nearest = to_means(white, self.means_.to(centred.device)).amin(dim=1)
        background = by_rows(centred, self.total_.to(centred.device).T).square().sum(dim=1)
        return white.square().sum(dim=1) + nearest - background
