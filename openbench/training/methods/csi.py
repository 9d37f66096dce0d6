"""Contrasted shifted instances: a contrastive network over four rotations, then linear heads on it, frozen."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Positive
from openbench.training.base import Batch, EvalModel, TrainingMethod, features_and_logits, head_of
from openbench.training.methods.fine_tuning import FineTuning
from openbench.training.methods.rotpred import ROTATIONS, rotated
from openbench.training.methods.supcon import SupCon
from openbench.training.recipe import Recipe


class Turned(nn.Module):
    """The network, and a head with one output per class and rotation."""

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.network, self.num_classes = network, num_classes
        self.joint = nn.Linear(feature_dim, ROTATIONS * num_classes)
        self.turned = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, s, s) to class logits (n, c)."""
        if not self.training:
            self.turned(self.averaged(images))
        # Last, and in a separate pass: what hooks the network then reads the unrotated images.
        return self.network(images)

    def averaged(self, images: Tensor) -> Tensor:
        """Return logits (n, c): those for "turned by r" of the image turned by r, averaged over the turns r."""
        logits = []
        for turns, turned in enumerate(rotated(images).chunk(ROTATIONS)):
            features, _ = features_and_logits(self.network, turned)
            logits.append(self.joint(features)[:, self.num_classes * turns : self.num_classes * (turns + 1)])
        return torch.stack(logits).mean(dim=0)


@dataclass(frozen=True)
class CSI(TrainingMethod):
    """CE(z(x), y) + mean_r CE(j(x turned by r), (y, r)), z and j linear on a network trained by SupCon over rotations.

    Two trainings, one after the other: first that of `training=supcon rotations=4` with `recipe`, then the two heads
    with `tuning`, while the network is frozen, its batch norm too. `method=csi` averages over the four turns (CSI-ens
    in the paper), `method=msp` sees the unrotated image (CSI).

    Args:
        recipe: of the contrastive training.
        tuning: epochs and rate of the heads.
        temperature: τ > 0 of the contrastive training; 0.07.
        width: dimensions of the projection there; 128.

    Reference:
        Tack et al.: CSI: novelty detection via contrastive learning on distributionally shifted instances, NeurIPS
        2020, arXiv:2007.08176, section 2.3 for labelled classes. The heads' rate falls by a cosine instead of steps,
        with the recipe's momentum; the third head of the released code, for the rotation alone, enters neither score
        and is left out.
    """

    tuning: FineTuning = field(default_factory=lambda: FineTuning(epochs=100, lr=0.1))
    temperature: Positive = 0.07
    width: Count = 128

    reference: ClassVar[str] = "Tack et al., NeurIPS 2020, arXiv:2007.08176"
    scorer: ClassVar[str] = "csi"

    @property
    def initial(self) -> SupCon:
        """The contrastive training over four rotations."""
        return SupCon(self.recipe, self.width, self.temperature, ROTATIONS)

    @property
    def schedule(self) -> Recipe:
        """The recipe of the heads."""
        return self.tuning.of(self.recipe)

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Turned:
        """Return the network with a head for turned classes."""
        return Turned(model, feature_dim, num_classes)

    def parameter_groups(self, model: Turned) -> list[dict[str, Any]]:
        """Return the two heads."""
        return [{"params": [*head_of(model.network).parameters(), *model.joint.parameters()]}]

    def loss(self, model: Turned, batch: Batch) -> Tensor:
        """Return the loss of both heads."""
        network, n = model.network.eval(), len(batch.images)
        with torch.no_grad():
            features, _ = features_and_logits(network, rotated(batch.images))
        torch.clear_autocast_cache()  # torch 2.6 would go on with the head's weights as cast without gradients
        turned = torch.cat([batch.labels + model.num_classes * turns for turns in range(ROTATIONS)])
        loss = functional.cross_entropy(head_of(network)(features[:n]), batch.labels)
        return loss + functional.cross_entropy(model.joint(features), turned)

    def eval_model(self, model: Turned) -> EvalModel:
        """Return the network with the output `turned` (n, c), logits averaged over four turns; five passes."""
        return EvalModel(model, head_of(model.network), model.network, {"turned": model.turned})
