"""A loss that asks for the same answer on several versions of an image."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import Checked, NonNegative
from openbench.training.augment.base import Augmentation
from openbench.training.augment.policies import AugMix

# Keeps the logarithm of the mean probability finite, as in the authors' code.
_LEAST = 1e-7


class Consistency(Checked, ABC):
    """Makes further versions of images, and a loss of the logits of all; subclasses are frozen dataclasses.

    Attributes:
        version: raised when a change alters the images or the loss; it enters the checkpoint's digest.
    """

    version: ClassVar[int] = 1

    @abstractmethod
    def versions(self, pixels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return further versions of images (n, h, w, channels) uint8."""

    @abstractmethod
    def loss(self, logits: Sequence[Tensor]) -> Tensor:
        """Return a mean over images, from the logits (n, c) of the images and of each version."""


@dataclass(frozen=True)
class JensenShannon(Consistency):
    """λ·mean over images of JSD(p₀; p₁; p₂) = λ·⅓·Σ_i KL(p_i ‖ m), m = (p₀ + p₁ + p₂)/3, over two AugMix versions.

    It is added to the loss of any method. The images pass through the network once for that loss, and once more with
    their versions, so that batch norm sees all three, as in the authors' code. There, with cross-entropy alone, one
    pass is enough for both.

    Args:
        mix: makes the versions.
        weight: λ ≥ 0; 12.

    Reference: Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty,
    ICLR 2020, arXiv 1912.02781.
    """

    mix: Augmentation = field(default_factory=AugMix)
    weight: NonNegative = 12.0

    def versions(self, pixels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return two."""
        return [self.mix(pixels, generator) for _ in range(2)]

    def loss(self, logits: Sequence[Tensor]) -> Tensor:
        """Return the weighted divergence."""
        log_p = torch.stack([z.float().log_softmax(dim=1) for z in logits])
        log_mean = log_p.exp().mean(dim=0).clamp_min(_LEAST).log()
        divergence = (log_p.exp() * (log_p - log_mean)).sum(dim=2).mean()
        return self.weight * divergence
