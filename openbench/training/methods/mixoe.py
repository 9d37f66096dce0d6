"""Fine-tuning on mixtures of ID images and outliers, whose labels fade from the class to uniform."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import NonNegative, Positive
from openbench.training.augment.mixing import box, draw_share
from openbench.training.base import Batch
from openbench.training.methods.fine_tuning import FineTuned
from openbench.training.parts._shared import outliers_of, uniform_cross_entropy

Mix = Literal["cutmix", "linear"]


@dataclass(frozen=True)
class MixOE(FineTuned):
    """CE(z(x), y) + β · CE(z(x̃), λ·onehot(y) + (1 − λ)/C), x̃ a mix of ID image (share λ) and outlier.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
        mix: `cutmix` pastes a rectangle of the outlier, `linear` is λx + (1 − λ)x_out.
        alpha: λ ~ Beta(α, α), drawn per batch; 0.1 for linear mixing in OpenOOD, 1 for CutMix in the authors' code.
        weight: β ≥ 0; 1.

    Reference:
        Zhang et al.: Mixture outlier exposure: towards out-of-distribution detection in fine-grained environments,
        WACV 2023, arXiv:2106.03917.
    """

    mix: Mix = "cutmix"
    alpha: Positive = 0.1
    weight: NonNegative = 1.0

    reference: ClassVar[str] = "Zhang et al., WACV 2023, arXiv:2106.03917"
    uses_outliers: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of clean and mixed images in one pass."""
        mixed, share = self.mixed(batch.images, outliers_of(batch), batch.info.generator)
        logits = model(torch.cat([batch.images, mixed]))
        clean, faded = logits[: len(batch.images)], logits[len(batch.images) :]
        of_class = functional.cross_entropy(faded, batch.labels[: len(mixed)])
        uniform = uniform_cross_entropy(faded)
        return batch.cross_entropy(clean) + self.weight * (share * of_class + (1 - share) * uniform)

    def mixed(self, images: Tensor, outliers: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return mixtures (min(n, m), channels, h, w) of images and outliers, and the images' share λ."""
        count = min(len(images), len(outliers))
        images, outliers = images[:count], outliers[:count]
        share = draw_share(self.alpha, generator)
        if self.mix == "linear":
            return share * images + (1 - share) * outliers, share
        top, bottom, left, right = box(images.shape[2:], share, generator)
        mixed = images.clone()
        mixed[:, :, top:bottom, left:right] = outliers[:, :, top:bottom, left:right]
        return mixed, 1 - (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
