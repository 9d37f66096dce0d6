"""Random sequences of image operations, as torchvision has them: RandAugment and AugMix."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from openbench import _compat
from openbench.config.constraints import Count, Positive
from openbench.training.augment.base import Augmentation


class Policy(Augmentation):
    """Applies a transform of torchvision to each image separately, with separate draws."""

    @abstractmethod
    def transform(self) -> Callable[[Tensor], Tensor]:
        """Return the function that maps one image (channels, h, w) uint8 to another."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return transformed images."""
        transform = self.transform()
        # torchvision draws from the global generator only: it is seeded from the one passed in, then restored.
        seed = int(torch.randint(0, 2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too, for good
            moved = [transform(image) for image in images.cpu().permute(0, 3, 1, 2)]
        return torch.stack(moved).permute(0, 2, 3, 1).to(images.device).contiguous()


@dataclass(frozen=True)
class RandAugment(Policy):
    """A number of operations, drawn at random, all at one magnitude.

    Args:
        operations: per image; 1 on CIFAR and ImageNet-200 in OpenOOD, 2 on ImageNet-1K and in the paper.
        magnitude: 0 to 30; 14 on CIFAR, 10 on ImageNet-200, 9 on ImageNet-1K in OpenOOD.

    Reference: Cubuk et al., RandAugment: Practical Automated Data Augmentation with a Reduced Search Space,
    NeurIPS 2020, arXiv 1909.13719; torchvision.transforms.v2.RandAugment.
    """

    operations: Count = 1
    magnitude: Annotated[int, Interval(ge=0, le=30)] = 14

    def transform(self) -> Callable[[Tensor], Tensor]:
        """Return torchvision's transform."""
        v2 = _compat.library("torchvision.transforms.v2")
        transform: Callable[[Tensor], Tensor] = v2.RandAugment(self.operations, self.magnitude)
        return transform


@dataclass(frozen=True)
class AugMix(Policy):
    """A random average of chains of operations, mixed with the image itself; without the consistency loss.

    Args:
        severity: 1 to 10; 3.
        width: chains; 3.
        depth: operations per chain; −1: one to three, drawn.
        alpha: of the Dirichlet and Beta distributions of the weights; 1.

    Reference: Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty,
    ICLR 2020, arXiv 1912.02781; torchvision.transforms.v2.AugMix. The paper's loss over three views is not added.
    """

    severity: Annotated[int, Interval(ge=1, le=10)] = 3
    width: Count = 3
    depth: Count | Literal[-1] = -1
    alpha: Positive = 1.0

    def transform(self) -> Callable[[Tensor], Tensor]:
        """Return torchvision's transform."""
        v2 = _compat.library("torchvision.transforms.v2")
        transform: Callable[[Tensor], Tensor] = v2.AugMix(self.severity, self.width, self.depth, self.alpha)
        return transform
