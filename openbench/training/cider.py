"""Compact classes and far-apart prototypes on the sphere: CIDER."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.errors import ConfigError
from openbench.training.base import Batch, Moment, Selection, Surface, TrainingData, TrainingMethod
from openbench.training.projected import Projected, moved, projected
from openbench.training.recipe import Recipe

# The official code scales the compactness loss by τ over this.
_BASE_TEMPERATURE = 0.07


class OnSphere(Projected):
    """The network, a projection to the sphere, class prototypes there, and class mean directions of the features."""

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, width: int) -> None:
        super().__init__(network, feature_dim, num_classes, width)
        self.prototypes: Tensor
        self.register_buffer("prototypes", torch.zeros(num_classes, width))


def dispersion(prototypes: Tensor, temperature: float) -> Tensor:
    """Return the mean over i of log mean over j ≠ i of exp(P_i·P_j/τ)."""
    c = len(prototypes)
    products = (prototypes @ prototypes.T / temperature).masked_fill(
        torch.eye(c, dtype=torch.bool, device=prototypes.device), float("-inf")
    )
    return (products.logsumexp(dim=1) - math.log(c - 1)).mean()


@dataclass(frozen=True)
class CIDER(TrainingMethod):
    """w·(τ/0.07)·CE(P h/τ, y) + mean_i log mean_{j≠i} exp(P_i·P_j/τ), h the unit projection, P moving class prototypes.

    Two views of every image. No classifier is trained: the epoch of lowest loss is kept. So that accuracy and logits
    mean something, the evaluated head holds the class mean directions of unit features, an average kept in training;
    that head is no part of the paper, whose score, KNN on the features, does not see it.

    Args:
        weight: w ≥ 0; 2.
        temperature: τ > 0; 0.1.
        keep: α in [0, 1) of the moving prototypes; 0.95, for CIFAR-100 0.5.
        width: dimensions of the projection; 128.

    Reference:
        Ming et al.: How to exploit hyperspherical embeddings for out-of-distribution detection?, ICLR 2023,
        arXiv:2203.04450.
    """

    recipe: Recipe = field(default_factory=Recipe)
    weight: float = 2.0
    temperature: float = 0.1
    keep: float = 0.95
    width: int = 128

    reference: ClassVar[str] = "Ming et al., ICLR 2023, arXiv:2203.04450"
    version: ClassVar[int] = 1
    scorer: ClassVar[str] = "knn"
    selection: ClassVar[Selection] = "train_loss"
    views: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (self.weight >= 0 and self.temperature > 0 and 0 <= self.keep < 1 and self.width >= 1):
            allowed = "weight ≥ 0, temperature > 0, 0 ≤ keep < 1, width ≥ 1"
            raise ConfigError(f"training — found {self} — allowed: {allowed}")

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> OnSphere:
        """Return the network with projection and prototypes."""
        return OnSphere(model, feature_dim, num_classes, self.width)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return all parameters but those of the unused classifier."""
        return projected(model, "CIDER.parameter_groups").learning()

    def on_epoch_start(self, model: nn.Module, moment: Moment, data: TrainingData) -> None:
        """Before the first step, put prototypes and directions at the class means of all training images."""
        if moment.epoch > 0 or not isinstance(model, OnSphere):
            return
        model.eval()
        with torch.no_grad():
            for images, labels, _ in data.train.clean():
                features, embedded = model.embed(images)
                model.directions.index_add_(0, labels, features)
                model.prototypes.index_add_(0, labels, embedded)
            model.directions.copy_(functional.normalize(model.directions, dim=1))
            model.prototypes.copy_(functional.normalize(model.prototypes, dim=1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move prototypes and directions by it."""
        if not isinstance(model, OnSphere):
            raise TypeError(f"CIDER.loss: found {type(model).__name__} — pass what prepare returned")
        features, embedded = model.embed(batch.images)
        embedded = embedded.float()
        prototypes = moved(model.prototypes, embedded, batch.labels, self.keep)
        model.prototypes = prototypes.detach()
        model.follow(features, batch.labels, self.keep)
        logits = embedded @ model.prototypes.T / self.temperature
        compactness = self.temperature / _BASE_TEMPERATURE * functional.cross_entropy(logits, batch.labels)
        return self.weight * compactness + dispersion(prototypes, self.temperature)

    def surface(self, model: nn.Module) -> Surface:
        """Return the network with class mean directions as its head."""
        return projected(model, "CIDER.surface").surface()
