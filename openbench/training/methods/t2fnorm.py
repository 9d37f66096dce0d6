"""Cross-entropy behind unit features; at test time features keep their norm, divided by the temperature."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Positive
from openbench.training.base import Batch, EvalModel, TrainingMethod, features_and_logits, head_of, with_head


class Tempered(nn.Module):
    """The network with logits W(f/τ) + b."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        features, _ = features_and_logits(self.network, images)
        return head_of(self.network)(features / self.temperature)


@dataclass(frozen=True)
class T2FNorm(TrainingMethod):
    """Mean cross-entropy CE(W f/(τ‖f‖) + b, y); evaluated with W(f/τ) + b.

    The factor 1/τ is folded into the evaluated head, so every score sees logits = (W/τ)f + b, exactly, and the paper's
    score is plain MSP. OpenOOD leaves τ out at test time where there are 1000 classes; that is not done here.

    Args:
        temperature: τ > 0; 0.1, on ImageNet-1K 0.05.

    Reference:
        Regmi et al.: T2FNorm: train-time feature normalization for OOD detection in image classification, CVPR
        workshops 2024, arXiv:2305.17797.
    """

    temperature: Positive = 0.1

    reference: ClassVar[str] = "Regmi et al., CVPR workshops 2024, arXiv:2305.17797"
    # Logits are 1/τ times as large as usual, so many float32 probabilities would round to 1 and tie.
    scorer_params: ClassVar[Mapping[str, Any]] = MappingProxyType({"exact": True})
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Tempered:
        """Return the network with tempered logits."""
        return Tempered(model, self.temperature)

    def loss(self, model: Tempered, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the logits of unit features."""
        features, _ = features_and_logits(model.network, batch.images)
        return batch.cross_entropy(head_of(model.network)(functional.normalize(features, dim=1) / self.temperature))

    def eval_model(self, model: Tempered) -> EvalModel:
        """Return the network with W/τ for W."""
        return with_head(model.network, head_of(model.network).weight / self.temperature, None)
