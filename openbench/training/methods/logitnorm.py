"""Cross-entropy of logits scaled to one length, so that confidence cannot grow with the norm."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.linalg import vector_norm

from openbench.config.constraints import Positive
from openbench.training.base import Batch, TrainingMethod

_EPSILON = 1e-7


@dataclass(frozen=True)
class LogitNorm(TrainingMethod):
    """Mean cross-entropy CE(z / (τ(‖z‖ + 1e-7)), y); the network is evaluated without the scaling.

    Args:
        temperature: τ > 0; 0.04 on CIFAR-10.

    Reference:
        Wei et al.: Mitigating neural network overconfidence with logit normalization, ICML 2022, arXiv:2205.09310.
    """

    temperature: Positive = 0.04

    reference: ClassVar[str] = "Wei et al., ICML 2022, arXiv:2205.09310"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the scaled logits."""
        logits = model(batch.images)
        norms = vector_norm(logits, dim=1, keepdim=True) + _EPSILON
        return batch.cross_entropy(logits / (self.temperature * norms))
