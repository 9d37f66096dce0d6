"""Relative Mahalanobis distance."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.products import by_rows
from openbench.core.request import Field, Request, Role
from openbench.errors import NotApplicableError
from openbench.methods._inputs import training
from openbench.methods._stats import Moments, moments, row_normalise, unit_features, whitening


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
        m = self._moments(training(train, "RMDS"))
        if int(m.present.sum()) < 2:
            raise NotApplicableError(
                "RMDS.fit: training samples of a single class — its distance is the one to all samples, so all scores "
                "would be 0 — samples of two classes are needed, or method=mds"
            )
        within, total, center = whitening(m.within_covariance()), whitening(m.total_covariance()), m.mean()
        self.center_ = center.float()
        self.within_ = within.float()
        self.total_ = total.float()
        self.means_ = ((m.class_means() - center) @ within).float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        f = self._features(x) - self.learnt("center_").to(x.features.device)
        white, means = by_rows(f, self.learnt("within_").to(f.device).T), self.learnt("means_").to(f.device)
        nearest = (means.square().sum(dim=1) - 2 * white @ means.T).amin(dim=1)
        background = by_rows(f, self.learnt("total_").to(f.device).T).square().sum(dim=1)
        return white.square().sum(dim=1) + nearest - background

    def _moments(self, train: FeatureSet) -> Moments:
        return moments(train, "RMDS", unit_features) if self.normalise else moments(train, "RMDS")

    def _features(self, x: FeatureSet) -> Tensor:
        return row_normalise(x.features) if self.normalise else x.features
