"""Reciprocal points: each class keeps away from a point that stands for everything it is not."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import NonNegative
from openbench.training.base import Batch, EvalModel, TrainingMethod, features_and_logits, with_head


class Reciprocal(nn.Module):
    """The network, one reciprocal point per class, and the learnt radius."""

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.network = network
        self.points = nn.Parameter(0.1 * torch.randn(num_classes, feature_dim))
        self.radius = nn.Parameter(torch.zeros(()))

    def distances(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits l_k = ‖f − P_k‖²/d − f·P_k and their first part, both (n, c)."""
        features, _ = features_and_logits(self.network, images)
        square = torch.cdist(features.float(), self.points.float(), compute_mode="donot_use_mm_for_euclid_dist")
        square = square.square() / features.shape[1]
        return square - features.float() @ self.points.float().T, square

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        return self.distances(images)[0]


@dataclass(frozen=True)
class ARPL(TrainingMethod):
    """CE(l, y) + λ · mean max(0, ‖f − P_y‖²/d − R + 1), l_k = ‖f − P_k‖²/d − f·P_k.

    The evaluated head is linear, W_k = −(1 + 2/d)P_k, b_k = ‖P_k‖²/d, which is l without ‖f‖²/d. That term is the same
    for every class, so probabilities are exact, and with them MSP, the paper's score. Energies and maximum logits are
    not those of l.

    Args:
        weight: λ ≥ 0; 0.1.

    Reference:
        Chen et al.: Adversarial reciprocal points learning for open set recognition, TPAMI 2021, arXiv:2103.00953;
        without confusing samples.
    """

    weight: NonNegative = 0.1

    reference: ClassVar[str] = "Chen et al., TPAMI 2021, arXiv:2103.00953"
    separable: ClassVar[bool] = True
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Reciprocal:
        """Return the network with reciprocal points in place of its own classifier."""
        return Reciprocal(model, feature_dim, num_classes)

    def loss(self, model: Reciprocal, batch: Batch) -> Tensor:
        """Return the cross-entropy of the logits and the penalty of points too far out."""
        logits, square = model.distances(batch.images)
        to_true = square.gather(1, batch.labels[:, None])[:, 0]
        penalty = functional.relu(to_true - model.radius + 1).mean()
        return functional.cross_entropy(logits, batch.labels) + self.weight * penalty

    def eval_model(self, model: Reciprocal) -> EvalModel:
        """Return the network with the linear head that has the same probabilities."""
        points, d = model.points, model.points.shape[1]
        return with_head(model.network, -(1 + 2 / d) * points, points.square().sum(dim=1) / d)
