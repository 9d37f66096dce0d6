"""Plain cross-entropy: the baseline training that every post-hoc method starts from."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from openbench.training.base import Batch, TrainingMethod


@dataclass(frozen=True)
class CrossEntropy(TrainingMethod):
    """Mean cross-entropy of the logits against the labels: −log softmax(z)_y.

    Reference:
        Hendrycks, Gimpel: A baseline for detecting misclassified and out-of-distribution examples in neural networks,
        ICLR 2017, arXiv:1610.02136; recipe of Zhang et al.: OpenOOD v1.5, arXiv:2306.09301.
    """

    reference: ClassVar[str] = "Hendrycks, Gimpel, ICLR 2017, arXiv:1610.02136"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch."""
        return batch.cross_entropy(model(batch.images))
