"""Compact classes and far-apart prototypes on the sphere: CIDER."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Decay, NonNegative, Positive
from openbench.training.base import Batch, TrainingData, features_and_logits
from openbench.training.parts._contrastive import Contrastive, Projected, ema_update

# The official code scales the compactness loss by τ over this.
_BASE_TEMPERATURE = 0.07


class WithPrototypes(Projected):
    """The network, a projection to the sphere, class prototypes there, and class mean directions of the features."""

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, width: int) -> None:
        super().__init__(network, feature_dim, num_classes, width)
        self.prototypes: Tensor
        self.register_buffer("prototypes", torch.zeros(num_classes, width))

    def initialise(self, data: TrainingData, prototypes: Tensor | None = None) -> None:
        """Put directions and prototypes at the class means of all training images."""
        super().initialise(data, self.prototypes)

    def step(self, images: Tensor, labels: Tensor, keep: float, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Move prototypes and directions by a batch.

        Args:
            images: (n, channels, h, w).
            labels: (n,).
            keep: α in [0, 1), the share of the old value that each sample leaves.
            temperature: τ > 0.

        Returns:
            The features (n, d) of the images; compactness, τ/0.07 · CE(P h/τ, y); dispersion, see `dispersion`.
        """
        features, _ = features_and_logits(self.network, images)
        embedded = functional.normalize(self.project(features).float(), dim=1)
        prototypes = ema_update(self.prototypes, embedded, labels, keep)
        self.prototypes = prototypes.detach()
        self.update_directions(functional.normalize(features, dim=1), labels, keep)
        entropy = functional.cross_entropy(embedded @ self.prototypes.T / temperature, labels)
        return features, temperature / _BASE_TEMPERATURE * entropy, dispersion(prototypes, temperature)


def dispersion(prototypes: Tensor, temperature: float) -> Tensor:
    """Return the mean over i of log mean over j ≠ i of exp(P_i·P_j/τ)."""
    c = len(prototypes)
    products = (prototypes @ prototypes.T / temperature).masked_fill(
        torch.eye(c, dtype=torch.bool, device=prototypes.device), float("-inf")
    )
    return (products.logsumexp(dim=1) - math.log(c - 1)).mean()


@dataclass(frozen=True)
class CIDER(Contrastive):
    """w·(τ/0.07)·CE(P h/τ, y) + mean_i log mean_{j≠i} exp(P_i·P_j/τ), h the unit projection, P moving class prototypes.

    Two views of every image. No classifier is trained: the epoch of lowest loss is kept. So that accuracy and logits
    mean something, the evaluated head holds the class mean directions of unit features, an average kept in training;
    that head is not part of the paper, whose score, KNN on the features, does not use it.

    Args:
        weight: w ≥ 0; 2.
        temperature: τ > 0; 0.1.
        keep: α in [0, 1) of the moving prototypes; 0.95, or 0.5 for CIFAR-100.
        width: dimensions of the projection; 128.

    Reference:
        Ming et al.: How to exploit hyperspherical embeddings for out-of-distribution detection?, ICLR 2023,
        arXiv:2203.04450.
    """

    weight: NonNegative = 2.0
    temperature: Positive = 0.1
    keep: Decay = 0.95

    reference: ClassVar[str] = "Ming et al., ICLR 2023, arXiv:2203.04450"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> WithPrototypes:
        """Return the network with projection and prototypes."""
        return WithPrototypes(model, feature_dim, num_classes, self.width)

    def loss(self, model: WithPrototypes, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move prototypes and directions by it."""
        _, compact, disperse = model.step(batch.images, batch.labels, self.keep, self.temperature)
        return self.weight * compact + disperse
