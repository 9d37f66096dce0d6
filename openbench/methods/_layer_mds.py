"""Mahalanobis distance of one layer's channel means: from cached columns, or after an input step that shortens it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core.features import FeatureSet, Head
from openbench.core.live import LiveBackbone, LiveMethod
from openbench.core.method import Method
from openbench.core.products import by_rows
from openbench.core.request import Field, Request, Role
from openbench.methods._inputs import training
from openbench.methods._stats import moments, whitening

NEEDS = Request(
    fields=frozenset({Field.MAPS, Field.LABELS}),
    fit_on=Role.ID_TRAIN,
    layers=("stage1", "stage2", "stage3", "stage4"),
    pool="mean",
)
_REFERENCE = "Lee et al., NeurIPS 2018, arXiv 1807.03888"


@dataclass(frozen=True)
class Clusters:
    """Class means and one covariance, ready to measure by.

    Args:
        centre: (d,) mean of all vectors.
        whiten: (d, r) with A Aᵀ = Σ⁺, r the rank.
        means: (k, r) class means in whitened coordinates.
    """

    centre: Tensor
    whiten: Tensor
    means: Tensor

    @classmethod
    def of(cls, train: FeatureSet | None, layer: str) -> "Clusters":
        """Learn them from the pooled map of a layer (n, d) and labels (n,), in float64."""
        where = f"MDSEnsemble at {layer}"
        m = moments(training(train, where), where, lambda rows: rows.map(layer))
        whiten, centre = whitening(m.within_covariance()), m.mean()
        return cls(centre.float(), whiten.float(), ((m.class_means() - centre) @ whiten).float())

    def distance(self, pooled: Tensor) -> Tensor:
        """Return d²(x)/r (n,), d the distance of vectors (n, d) to the nearest mean; to its own it is 1 on average."""
        device = pooled.device
        white = by_rows(pooled - self.centre.to(device), self.whiten.to(device).T)
        means = self.means.to(device)
        to_means = means.square().sum(dim=1) - 2 * white @ means.T
        return (white.square().sum(dim=1) + to_means.amin(dim=1)) / white.shape[1]


@dataclass
class LayerMDS(Method):
    """Squared Mahalanobis distance of one layer's channel means to the nearest class, over the rank of the covariance.

    Args:
        layer: the layer measured.
        among: layers cached by the same pass: those of the other members of the ensemble.
    """

    needs: ClassVar[Request] = NEEDS
    reference: ClassVar[str] = _REFERENCE

    layer: str
    among: Sequence[str]

    @property
    def request(self) -> Request:
        """Channel means of all layers of the ensemble, so that one pass yields them."""
        return replace(self.needs, layers=tuple(self.among))

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class means and the shared covariance."""
        self.clusters_ = Clusters.of(train, self.layer)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("clusters_")
        return self.clusters_.distance(x.map(self.layer))


@dataclass
class SteppedLayerMDS(LiveMethod):
    """The same after a step of the input towards the nearest class: x̃ = x − ε sign(∇ₓ d²)/σ, sign(0) = +1.

    Args:
        layer: the layer measured, and whose distance the step shortens.
        among: layers cached by the same pass over the training set.
        epsilon: ε in pixel units of [0, 1].
    """

    needs: ClassVar[Request] = NEEDS
    reference: ClassVar[str] = _REFERENCE

    layer: str
    among: Sequence[str]
    epsilon: NonNegative

    @property
    def request(self) -> Request:
        """Channel means of all layers of the ensemble, unperturbed, for `fit`."""
        return replace(self.needs, layers=tuple(self.among))

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class means and the shared covariance."""
        self.clusters_ = Clusters.of(train, self.layer)
        return self

    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch; larger = more OOD."""
        self.learnt("clusters_")
        with backbone.frozen() as network:
            with torch.enable_grad():
                x = images.detach().clone().requires_grad_(True)
                distance = self.clusters_.distance(self._pooled(x, network, backbone))
                (gradient,) = torch.autograd.grad(distance.sum(), x)
            std = torch.tensor(backbone.preprocess.std).to(images).view(1, -1, 1, 1)
            moved = images - self.epsilon * torch.where(gradient >= 0, 1.0, -1.0) / std
            with torch.no_grad():
                return self.clusters_.distance(self._pooled(moved, network, backbone))

    def _pooled(self, images: Tensor, network: torch.nn.Module, backbone: LiveBackbone) -> Tensor:
        """The layer's channel means (n, d) for images."""
        seen: list[Tensor] = []

        def watch(maps: Tensor) -> Tensor:
            seen.append(maps.float().mean(dim=(2, 3)))
            return maps

        with backbone.changing(self.layer, watch):
            network(images)
        return seen[0]
