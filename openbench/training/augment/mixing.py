"""Mixing of images with one another and of their labels in proportion (Mixup, RegMixup, CutMix)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from openbench.config.constraints import Checked, Positive, Probability


@dataclass(frozen=True)
class Mixed:
    """A mixed batch.

    Args:
        images: (n, channels, h, w).
        partners: (n,) int64 on the CPU: which image of the batch was mixed into each.
        share: λ in [0, 1], how much of each is its own.
    """

    images: Tensor
    partners: Tensor
    share: float


class Mixing(Checked, ABC):
    """Mixes the images of a batch. Final subclasses are frozen dataclasses; their fields enter the checkpoint's digest.

    Attributes:
        clean_weight: weight of the loss of the unmixed images, which is added to that of the mixed ones.
        version: raised when a change alters the images or shares that come out; it enters that digest, too.
    """

    version: ClassVar[int] = 1
    clean_weight: ClassVar[float] = 0.0

    @abstractmethod
    def __call__(self, images: Tensor, generator: torch.Generator) -> Mixed:
        """Return the mixed batch; the argument is not changed.

        Args:
            images: (n, channels, h, w) float32, normalised.
            generator: on the CPU, so that every device sees the same images.
        """


@dataclass(frozen=True)
class Mixup(Mixing):
    """Returns λx + (1 − λ)x′, x′ another image of the batch, λ ~ Beta(α, α) drawn once per batch.

    Args:
        alpha: α > 0; 0.2 in OpenOOD, as in the paper on ImageNet.

    Reference: Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018, arXiv 1710.09412.
    """

    alpha: Positive = 0.2

    def __call__(self, images: Tensor, generator: torch.Generator) -> Mixed:
        """Return weighted sums of images."""
        return blend(images, draw_share(self.alpha, generator), generator)


@dataclass(frozen=True)
class RegMixup(Mixup):
    """Mixup whose loss is added to that of the clean images: CE(z(x), y) + CE(z(x̃), ỹ).

    Args:
        alpha: α > 0; 20 on CIFAR in the paper, where λ lies near ½; OpenOOD uses 10 for the larger images.

    Reference: Pinto et al., RegMixup: Mixup as a Regularizer Can Surprisingly Improve Accuracy and Out Distribution
    Robustness, NeurIPS 2022, arXiv 2206.14502.
    """

    clean_weight: ClassVar[float] = 1.0

    alpha: Positive = 20.0


@dataclass(frozen=True)
class CutMix(Mixing):
    """Pastes one rectangle, at the same place for the batch, from another image; λ is the area left.

    The rectangle has the image's aspect and √(1 − λ₀) of its sides, λ₀ ~ Beta(α, α), its centre uniform; the part
    outside the image is cut off and λ corrected for it.

    Args:
        alpha: α > 0; 1: λ₀ uniform.
        probability: of mixing a batch at all; 1 in OpenOOD, 0.5 in the paper on CIFAR.

    Reference: Yun et al., CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features,
    ICCV 2019, arXiv 1905.04899.
    """

    alpha: Positive = 1.0
    probability: Probability = 1.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Mixed:
        """Return images with a rectangle of another."""
        partners = torch.randperm(len(images), generator=generator)
        share = draw_share(self.alpha, generator)
        top, bottom, left, right = box(images.shape[2:], share, generator)
        if float(torch.rand((), generator=generator)) >= self.probability:
            return Mixed(images, partners, 1.0)
        mixed = images.clone()
        other = images[partners.to(images.device)]
        mixed[:, :, top:bottom, left:right] = other[:, :, top:bottom, left:right]
        area = (bottom - top) * (right - left) / (images.shape[2] * images.shape[3])
        return Mixed(mixed, partners, 1 - area)


def blend(images: Tensor, share: float, generator: torch.Generator) -> Mixed:
    """Return λx + (1 − λ)x′ with x′ from a random permutation of the batch."""
    partners = torch.randperm(len(images), generator=generator)
    return Mixed(share * images + (1 - share) * images[partners.to(images.device)], partners, share)


def draw_share(alpha: float, generator: torch.Generator) -> float:
    """Return λ ~ Beta(α, α)."""
    # torch's Beta takes no generator; NumPy's is seeded from the one passed in.
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def box(size: torch.Size, share: float, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Return top, bottom, left, right of a rectangle with √(1 − λ) of the image's sides, cut off at its edges.

    Args:
        size: height and width of the image.
        share: λ in [0, 1].
        generator: draws the centre.
    """
    edges = []
    for side in size:
        length = int(side * (1 - share) ** 0.5)
        centre = int(torch.randint(0, side, (), generator=generator))
        edges += [max(centre - length // 2, 0), min(centre + length // 2, side)]
    return edges[0], edges[1], edges[2], edges[3]
