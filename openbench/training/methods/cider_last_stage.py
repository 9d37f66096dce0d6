"""CIDER as a fine-tuning: the last stage and the projection learn, on the weights of a classifier."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from openbench.config.constraints import NonNegative
from openbench.errors import ConfigError
from openbench.training.base import head_of
from openbench.training.methods.cider import CIDER, WithPrototypes
from openbench.training.methods.fine_tuning import FineTuned, FineTuning


def last_stage(network: nn.Module) -> nn.Module:
    """Return the last child of a network that has parameters and comes before its classifier: a ResNet's `layer4`.

    In networks that keep all blocks in one child, as transformers do, that child is the last stage.

    Raises:
        ConfigError: there is none.
    """
    head = head_of(network)
    parts = [part for part in network.children() if not any(module is head for module in part.modules())]
    learning = [part for part in parts if any(True for _ in part.parameters())]
    if not learning:
        raise ConfigError(
            f"training=cider_last_stage: no part of {type(network).__name__} before its classifier has parameters — "
            "use training=cider"
        )
    return learning[-1]


@dataclass(frozen=True)
class CIDERLastStage(FineTuned, CIDER):
    """The loss of CIDER; it trains only the network's last stage and the projection, from cross-entropy's weights.

    OpenOOD trains CIDER on ImageNet in this way. Earlier stages keep their weights; their batch norm goes on averaging,
    as it does there. Two views of every image.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning: 10 and 0.01 for ImageNet-200, 0.001 for ImageNet-1K.
        weight_decay: of the fine-tuning; 1e-4.
        weight: w ≥ 0, of compactness against dispersion; 2.
        temperature: τ > 0; 0.1.
        keep: α in [0, 1) of the moving prototypes; 0.95.
        width: dimensions of the projection; 128.

    Reference:
        Ming et al.: How to exploit hyperspherical embeddings for out-of-distribution detection?, ICLR 2023,
        arXiv:2203.04450; stage and rates of Zhang et al.: OpenOOD v1.5, arXiv:2306.09301, without their warm-up, which
        lasts all ten epochs.
    """

    tuning: FineTuning = field(default_factory=lambda: FineTuning(epochs=10, lr=0.01))
    weight_decay: NonNegative = 1e-4

    reference: ClassVar[str] = "Ming et al., ICLR 2023, arXiv:2203.04450"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> WithPrototypes:
        """Return the network with projection and prototypes; earlier stages get no gradient."""
        prepared = super().prepare(model, feature_dim, num_classes)
        model.requires_grad_(False)
        last_stage(model).requires_grad_(True)
        return prepared

    def parameter_groups(self, model: WithPrototypes) -> list[dict[str, Any]]:
        """Return the parameters of the last stage and of the projection."""
        return [{**group, "weight_decay": self.weight_decay} for group in super().parameter_groups(model)]
