"""Cross-entropy on ID images, uniform predictions on outliers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from openbench.config.constraints import Count, NonNegative
from openbench.training.base import Batch, TrainingMethod
from openbench.training.parts._shared import outliers_of, uniform_cross_entropy


@dataclass(frozen=True)
class OutlierExposure(TrainingMethod):
    """CE(z, y) + λ · mean over outliers of [log Σ exp z − mean_c z_c], the cross-entropy to the uniform distribution.

    ID images and outliers pass the network together and share batch-norm statistics, as in the authors' code. Unlike
    OpenOOD's, outliers are augmented as ID images are.

    Args:
        weight: λ ≥ 0; 0.5.
        outliers_per_step: 256, twice the ID images.

    Reference:
        Hendrycks, Mazeika, Dietterich: Deep anomaly detection with outlier exposure, ICLR 2019, arXiv:1812.04606.
    """

    weight: NonNegative = 0.5
    outliers_per_step: Count = 256

    reference: ClassVar[str] = "Hendrycks, Mazeika, Dietterich, ICLR 2019, arXiv:1812.04606"
    uses_outliers: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of ID images and outliers in one pass."""
        n = len(batch.images)
        logits = model(torch.cat([batch.images, outliers_of(batch)]))
        return batch.cross_entropy(logits[:n]) + self.weight * uniform_cross_entropy(logits[n:])
