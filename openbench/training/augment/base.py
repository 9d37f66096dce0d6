"""Augmentations of whole uint8 batches: a value per augmentation, its randomness from a generator that is passed in."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Checked, Probability


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
        padded = functional.pad(images, (0, 0, p, p, p, p))
        rows = top[:, None] + torch.arange(h, device=images.device)
        columns = left[:, None] + torch.arange(w, device=images.device)
        # One flat index per pixel: a single gather moves all windows, channels stay together.
        wide = w + 2 * p
        image = torch.arange(n, device=images.device)[:, None] * (h + 2 * p)
        flat = ((image + rows) * wide)[:, :, None] + columns[:, None, :]
        return padded.view(-1, images.shape[3]).index_select(0, flat.view(-1)).view_as(images)


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
