"""Classes and, as a second task, the rotation of the image."""

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import NonNegative
from openbench.training.base import Batch, EvalModel, TrainingMethod, features_and_logits, head_of

ROTATIONS: Final = 4


def rotated(images: Tensor) -> Tensor:
    """Return images (n, channels, s, s) turned by 0, 90, 180 and 270 degrees, (4n, channels, s, s), turn by turn."""
    return torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(ROTATIONS)])


class Turning(nn.Module):
    """The network and a head with four outputs, one per rotation."""

    def __init__(self, network: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.network = network
        self.rotation = nn.Linear(feature_dim, ROTATIONS)
        self.rotations = nn.Identity()

    def turned(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class logits (n, c) of the images as they are and the rotation logits (4n, 4) of all turns."""
        features, logits = features_and_logits(self.network, rotated(images))
        return logits[: len(images)], self.rotation(features)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, s, s) to class logits (n, c)."""
        if not self.training:
            turns = rotated(images).chunk(ROTATIONS)
            self.rotations(torch.cat([self.rotation(features_and_logits(self.network, x)[0]) for x in turns], dim=1))
        # Last, and in a separate pass: hooks on the network then read the unrotated images.
        return self.network(images)


@dataclass(frozen=True)
class RotPred(TrainingMethod):
    """CE(z, y) + λ · CE of four rotation logits over all four turns of each image.

    Args:
        weight: λ ≥ 0; 1 in OpenOOD.

    Reference:
        Hendrycks et al.: Using self-supervised learning can improve model robustness and uncertainty, NeurIPS 2019,
        arXiv:1906.12340. There the rotation loss has weight ½ and perturbed images; this is OpenOOD's form.
    """

    weight: NonNegative = 1.0

    reference: ClassVar[str] = "Hendrycks et al., NeurIPS 2019, arXiv:1906.12340"
    scorer: ClassVar[str] = "rotpred"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Turning:
        """Return the network with a rotation head."""
        return Turning(model, feature_dim)

    def loss(self, model: Turning, batch: Batch) -> Tensor:
        """Return the loss of all four turns of a batch in one pass."""
        logits, rotation_logits = model.turned(batch.images)
        turns = torch.arange(ROTATIONS, device=logits.device).repeat_interleave(len(batch.images))
        return batch.cross_entropy(logits) + self.weight * functional.cross_entropy(rotation_logits, turns)

    def eval_model(self, model: Turning) -> EvalModel:
        """Return the network with the output `rotations` (n, 16): for each turn its four logits; five passes."""
        return EvalModel(model, head_of(model.network), model.network, {"rotations": model.rotations})
