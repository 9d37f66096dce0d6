"""The common part of methods that learn positions on the sphere but no classifier."""

from typing import Any, ClassVar

from torch import nn

from openbench.training.base import Moment, Selection, Surface, TrainingData, TrainingMethod
from openbench.training.parts.projected import Projected, projected


class Contrastive(TrainingMethod):
    """A loss on unit projections of two views of every image. Final subclasses have fields `recipe` and `width`.

    No classifier is trained: the epoch of lowest loss is kept, and class mean directions of the features predict.

    Attributes:
        width: dimensions of the projection.
        keep_direction: α in [0, 1) of the class mean directions at each sample; only accuracy and logits use these.
    """

    width: int
    keep_direction: ClassVar[float] = 0.95
    scorer: ClassVar[str] = "knn"
    selection: ClassVar[Selection] = "train_loss"
    views: ClassVar[int] = 2

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Projected:
        """Return the network with a projection."""
        return Projected(model, feature_dim, num_classes, self.width)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return all parameters but those of the unused classifier."""
        return projected(model, f"{type(self).__name__}.parameter_groups").learning()

    def on_epoch_start(self, model: nn.Module, moment: Moment, data: TrainingData) -> None:
        """Before the first step, put directions (and prototypes, if any) at the class means of all training images."""
        if moment.epoch == 0:
            projected(model, f"{type(self).__name__}.on_epoch_start").point_at_means(data)

    def surface(self, model: nn.Module) -> Surface:
        """Return the network with class mean directions as its head."""
        return projected(model, f"{type(self).__name__}.surface").surface()
