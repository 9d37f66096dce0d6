"""Base classes that several methods share: distances to class means, probabilities of logits."""

from abc import abstractmethod

import torch
from torch import Tensor

from openbench.core import FeatureSet, Method, by_rows
from openbench.methods._stats import Moments, whitening


class NearestMean(Method):
    """The squared Mahalanobis distance to the nearest class mean, one covariance shared by all classes."""

    @abstractmethod
    def _vectors(self, x: FeatureSet) -> Tensor:
        """The vectors (n, d) that are compared with the means."""

    def _learn(self, m: Moments) -> None:
        """Learn class means and the shared covariance from the moments of training vectors."""
        whiten, center = whitening(m.within_covariance()), m.mean()
        self.center_ = center.float()
        self.whiten_ = whiten.float()
        self.means_ = ((m.class_means() - center) @ whiten).float()
        self.present_ = m.present.cpu()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        square, to_means = self._distances(x)
        return square + to_means.amin(dim=1)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the squared distance to each class mean, (n, c) float32; +inf for classes absent from training."""
        square, to_means = self._distances(x)
        by_class = to_means.new_full((len(x), len(self.present_)), float("inf"))
        by_class[:, self.present_.to(by_class.device)] = square[:, None] + to_means
        return by_class

    def _distances(self, x: FeatureSet) -> tuple[Tensor, Tensor]:
        """‖w‖² (n,) and ‖m‖² − 2 w·m (n, k) for the k classes present: their sum is ‖w − m‖²."""
        center, vectors = self.learnt("center_"), self._vectors(x)
        white = by_rows(vectors - center.to(vectors.device), self.whiten_.to(vectors.device).T)
        return white.square().sum(dim=1), to_means(white, self.means_.to(vectors.device))


def to_means(white: Tensor, means: Tensor) -> Tensor:
    """Return ‖m‖² − 2 w·m (n, k) of whitened vectors w (n, r) and means m (k, r): one product, no differences."""
    return means.square().sum(dim=1) - 2 * white @ means.T


class SoftmaxMethod(Method):
    """A score of logits that the method makes; a class fits as badly as 1 − their softmax."""

    @abstractmethod
    def _class_logits(self, x: FeatureSet) -> Tensor:
        """The logits (n, c)."""

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax of the method's logits, (n, c) float32."""
        return (1 - torch.softmax(self._class_logits(x), dim=1)).float()

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the softmax of the method's logits, (n, c)."""
        return 1 - scores
