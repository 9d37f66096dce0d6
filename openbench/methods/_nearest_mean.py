"""Squared Mahalanobis distances to class means, of vectors that a method makes of the features."""

from abc import abstractmethod

from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.products import by_rows
from openbench.methods._stats import Moments, whitening


class NearestMean(Method):
    """The distance to the nearest class mean, one covariance shared by all classes."""

    @abstractmethod
    def _vectors(self, x: FeatureSet) -> Tensor:
        """What is compared with the means, (n, d)."""

    def _learn(self, m: Moments) -> None:
        """Learn class means and the shared covariance from the moments of training vectors."""
        whiten, center = whitening(m.within_covariance()), m.mean()
        self.center_ = center.float()
        self.whiten_ = whiten.float()
        self.means_ = ((m.class_means() - center) @ whiten).float()
        self.present_ = m.present.cpu()

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
        center = self.learnt("center_")
        vectors = self._vectors(x)
        white = by_rows(vectors - center.to(vectors.device), self.learnt("whiten_").to(vectors.device).T)
        means = self.learnt("means_").to(vectors.device)
        # One small product instead of a difference per class.
        return white.square().sum(dim=1, keepdim=True) + means.square().sum(dim=1) - 2 * white @ means.T
