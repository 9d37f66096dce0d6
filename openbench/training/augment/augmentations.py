"""Augmentations of whole uint8 batches, each a value that draws from the generator it is given."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Interval
from torch import Tensor
from torch.nn import functional

from openbench import _compat
from openbench.config.constraints import Checked, Count, NonNegative, Positive, Probability

# Keeps the logarithm of the mean probability finite, as in the authors' code.
_LEAST = 1e-7


class Augmentation(Checked, ABC):
    """Changes images at random. Final subclasses are frozen dataclasses; their fields enter the checkpoint's digest.

    Attributes:
        version: raised when a change alters the images that come out; it enters that digest, too.
    """

    version: ClassVar[int] = 1

    @abstractmethod
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images, same shape, dtype and device; the argument is not changed.

        Args:
            images: (n, h, w, channels) uint8.
            generator: on the CPU, so that every device sees the same images.
        """


@dataclass(frozen=True)
class RandomCrop(Augmentation):
    """Returns a window of the image's own size at a uniformly random place of the image padded with black.

    Args:
        padding: p ≥ 0 black pixels on each side, so that each offset is uniform on {0, …, 2p}; 4 for CIFAR.
    """

    padding: Annotated[int, Ge(0)] = 4

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return one random window per image."""
        n, h, w, _ = images.shape
        p = self.padding
        top, left = torch.randint(0, 2 * p + 1, (2, n), generator=generator).to(images.device)
        windows = functional.pad(images, (0, 0, p, p, p, p)).unfold(1, h, 1).unfold(2, w, 1)
        return windows[torch.arange(n, device=images.device), top, left].permute(0, 2, 3, 1).contiguous()


@dataclass(frozen=True)
class HorizontalFlip(Augmentation):
    """Mirrors an image left to right with a given probability.

    Args:
        probability: in [0, 1]; 0.5 for CIFAR. Not for digits and letters.
    """

    probability: Probability = 0.5

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images, some of them mirrored."""
        mirrored = torch.rand(len(images), generator=generator) < self.probability
        return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(2), images)


@dataclass(frozen=True)
class Cutout(Augmentation):
    """Blanks squares whose centres are uniform in the image; the part outside the image is cut off.

    Args:
        holes: squares per image; 1.
        side: length in pixels; 16 on CIFAR-10, 8 on CIFAR-100 in the paper.
        grey: the colour of a hole, in [0, 1]. The paper takes the training images' mean: about ½ for photographs.

    Reference: DeVries & Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, 2017,
    arXiv 1708.04552.
    """

    holes: Count = 1
    side: Count = 16
    grey: Probability = 0.5

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images with holes."""
        n, h, w, _ = images.shape
        blank = torch.zeros(n, h, w, dtype=torch.bool)
        for _ in range(self.holes):
            inside = []
            for length in (h, w):
                start = torch.randint(0, length, (n, 1), generator=generator) - self.side // 2
                places = torch.arange(length)
                inside.append((places >= start) & (places < start + self.side))
            blank |= inside[0][:, :, None] & inside[1][:, None, :]
        return images.masked_fill(blank.to(images.device)[..., None], round(255 * self.grey))


def transformed(images: Tensor, name: str, arguments: tuple[Any, ...], generator: torch.Generator) -> Tensor:
    """Return images (n, h, w, channels) uint8, each put through a transform of torchvision with separate draws."""
    transform = getattr(_compat.library("torchvision.transforms.v2"), name)(*arguments)
    # torchvision draws from the global generator only: it is seeded from the one passed in, then restored.
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed GPUs too, for good
        changed = [transform(image) for image in images.cpu().permute(0, 3, 1, 2)]
    return torch.stack(changed).permute(0, 2, 3, 1).to(images.device).contiguous()


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """A number of operations, drawn at random, all at one magnitude.

    Args:
        operations: per image; 1 on CIFAR and ImageNet-200 in OpenOOD, 2 on ImageNet-1K and in the paper.
        magnitude: 0 to 30; 14 on CIFAR, 10 on ImageNet-200, 9 on ImageNet-1K in OpenOOD.

    Reference: Cubuk et al., RandAugment: Practical Automated Data Augmentation with a Reduced Search Space,
    NeurIPS 2020, arXiv 1909.13719; torchvision.transforms.v2.RandAugment.
    """

    operations: Count = 1
    magnitude: Annotated[int, Interval(ge=0, le=30)] = 14

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return transformed images."""
        return transformed(images, "RandAugment", astuple(self), generator)


@dataclass(frozen=True)
class AugMix(Augmentation):
    """A random average of chains of operations, mixed with the image itself; without the consistency loss.

    Args:
        severity: 1 to 10; 3.
        width: chains; 3.
        depth: operations per chain; −1: one to three, drawn.
        alpha: of the Dirichlet and Beta distributions of the weights; 1.

    Reference: Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty,
    ICLR 2020, arXiv 1912.02781; torchvision.transforms.v2.AugMix. `JensenShannon` adds the paper's loss.
    """

    severity: Annotated[int, Interval(ge=1, le=10)] = 3
    width: Count = 3
    depth: Count | Literal[-1] = -1
    alpha: Positive = 1.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return transformed images."""
        return transformed(images, "AugMix", astuple(self), generator)


@dataclass(frozen=True)
class JensenShannon(Checked):
    """λ·mean over images of JSD(p₀; p₁; p₂) = λ·⅓·Σ_i KL(p_i ‖ m), m = (p₀ + p₁ + p₂)/3, over two AugMix versions.

    It is added to the loss of any method. The images pass through the network once for that loss, and once more with
    their versions, so that batch norm sees all three, as in the authors' code. There, with cross-entropy alone, one
    pass is enough for both.

    Args:
        mix: makes the versions.
        weight: λ ≥ 0; 12.

    Attributes:
        version: raised when a change alters the images or the loss; it enters the checkpoint's digest.

    Reference: Hendrycks et al., AugMix: A Simple Data Processing Method to Improve Robustness and Uncertainty,
    ICLR 2020, arXiv 1912.02781.
    """

    version: ClassVar[int] = 1

    mix: Augmentation = field(default_factory=AugMix)
    weight: NonNegative = 12.0

    def versions(self, pixels: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return two further versions of images (n, h, w, channels) uint8."""
        return [self.mix(pixels, generator) for _ in range(2)]

    def loss(self, logits: Sequence[Tensor]) -> Tensor:
        """Return the weighted divergence, from the logits (n, c) of the images and of each version."""
        log_p = torch.stack([z.float().log_softmax(dim=1) for z in logits])
        log_mean = log_p.exp().mean(dim=0).clamp_min(_LEAST).log()
        return self.weight * (log_p.exp() * (log_p - log_mean)).sum(dim=2).mean()


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
        mixed, share = pasted(images, images[partners.to(images.device)], self.alpha, generator)
        if float(torch.rand((), generator=generator)) >= self.probability:
            return Mixed(images, partners, 1.0)
        return Mixed(mixed, partners, share)


def blend(images: Tensor, share: float, generator: torch.Generator) -> Mixed:
    """Return λx + (1 − λ)x′ with x′ from a random permutation of the batch."""
    partners = torch.randperm(len(images), generator=generator)
    return Mixed(share * images + (1 - share) * images[partners.to(images.device)], partners, share)


def draw_share(alpha: float, generator: torch.Generator) -> float:
    """Return λ ~ Beta(α, α)."""
    # torch's Beta takes no generator; NumPy's is seeded from the one passed in.
    seed = int(torch.randint(0, 2**62, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def pasted(images: Tensor, others: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """Return images with one rectangle of others, cut off at the edges, and the share of the area that is left.

    Args:
        images: (n, channels, h, w).
        others: likewise.
        alpha: the rectangle has √(1 − λ) of the sides, λ ~ Beta(α, α).
        generator: draws λ, then the centre.
    """
    share, edges = draw_share(alpha, generator), []
    for side in images.shape[2:]:
        length = int(side * (1 - share) ** 0.5)
        centre = int(torch.randint(0, side, (), generator=generator))
        edges.append(slice(max(centre - length // 2, 0), min(centre + length // 2, side)))
    mixed = images.clone()
    mixed[:, :, edges[0], edges[1]] = others[:, :, edges[0], edges[1]]
    area = (edges[0].stop - edges[0].start) * (edges[1].stop - edges[1].start)
    return mixed, 1 - area / (images.shape[2] * images.shape[3])
