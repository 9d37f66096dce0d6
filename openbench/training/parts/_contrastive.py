"""Methods that learn positions on the unit sphere: projection and class mean directions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count
from openbench.training.base import (
    EvalModel,
    Selection,
    StepInfo,
    TrainingData,
    TrainingMethod,
    features_and_logits,
    with_head,
)


class Projected(nn.Module):
    """The network, a projection to the sphere, and class mean directions of the features.

    Nothing trains the network's own classifier. So that accuracy and logits mean something, the directions replace it:
    an average of unit features per class, updated during training and used by no loss.

    Args:
        network: the backbone's network.
        feature_dim: d.
        num_classes: c.
        width: dimensions of the projection.
    """

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.network = network
        self.project = nn.Sequential(
            nn.Linear(feature_dim, feature_dim), nn.ReLU(inplace=True), nn.Linear(feature_dim, width)
        )
        self.directions: Tensor
        self.register_buffer("directions", torch.zeros(num_classes, feature_dim))

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit features (n, d) and unit projections (n, width)."""
        features, _ = features_and_logits(self.network, images)
        return functional.normalize(features, dim=1), functional.normalize(self.project(features), dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to products of features with class mean directions (n, c)."""
        features, _ = features_and_logits(self.network, images)
        return features @ functional.normalize(self.directions, dim=1).T

    @torch.no_grad()
    def initialise(self, data: TrainingData, prototypes: Tensor | None = None) -> None:
        """Put the directions, and prototypes (c, width) of projections, at the class means of all training images."""
        self.eval()
        means = [self.directions] if prototypes is None else [self.directions, prototypes]
        for images, labels, _ in data.train.clean():
            for mean, points in zip(means, self.embed(images), strict=False):
                mean.index_add_(0, labels, points)
        for mean in means:
            mean.copy_(functional.normalize(mean, dim=1))

    def update_directions(self, features: Tensor, labels: Tensor, keep: float) -> None:
        """Move the directions by the unit features (n, d) of a batch; each sample leaves the share `keep` in [0, 1)."""
        self.directions = ema_update(self.directions, features.detach().float(), labels, keep)

    def eval_model(self) -> EvalModel:
        """Return the module to evaluate: the network with class mean directions as its head."""
        directions = functional.normalize(self.directions, dim=1)
        return with_head(self.network, directions, torch.zeros_like(directions[:, 0]))


def ema_update(prototypes: Tensor, embedded: Tensor, labels: Tensor, keep: float) -> Tensor:
    """Return prototypes (c, d) after P_y ← normalise(α P_y + (1 − α) h) for every sample in turn, with gradients to h.

    Classes do not influence one another, so the i-th samples of all classes are taken at once.

    Args:
        prototypes: (c, d) of unit length.
        embedded: h (n, d).
        labels: (n,).
        keep: α in [0, 1].
    """
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels, minlength=len(prototypes))
    first = counts.cumsum(0) - counts
    for i in range(int(counts.max())):
        present = counts > i
        samples = embedded[order[first[present] + i]]
        step = functional.normalize(keep * prototypes[present] + (1 - keep) * samples, dim=1)
        prototypes = prototypes.index_put((present.nonzero()[:, 0],), step)
    return prototypes


@dataclass(frozen=True)
class Contrastive(TrainingMethod):
    """A loss on unit projections of two views of every image.

    No classifier is trained: the epoch of lowest loss is kept, and class mean directions of the features predict.

    Attributes:
        width: dimensions of the projection; 128.
        keep_direction: α in [0, 1) of the class mean directions at each sample; only accuracy and logits use these.
    """

    width: Count = 128

    keep_direction: ClassVar[float] = 0.95
    scorer: ClassVar[str] = "knn"
    selection: ClassVar[Selection] = "train_loss"
    views: ClassVar[int] = 2
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Projected:
        """Return the network with a projection."""
        return Projected(model, feature_dim, num_classes, self.width)

    def on_epoch_start(self, model: Projected, info: StepInfo, data: TrainingData) -> None:
        """Before the first step, put directions at the class means of all training images."""
        if info.epoch == 0:
            model.initialise(data)

    def eval_model(self, model: Projected) -> EvalModel:
        """Return the network with class mean directions as its head."""
        return model.eval_model()
