"""Cutout: squares of an image blanked out."""

from dataclasses import dataclass

import torch
from torch import Tensor

from openbench.config.constraints import Count, Probability
from openbench.training.augment.base import Augmentation


@dataclass(frozen=True)
class Cutout(Augmentation):
    """Blanks squares whose centres are uniform in the image; what sticks out is cut off.

    Args:
        holes: squares per image; 1.
        side: length in pixels; 16 on CIFAR-10, 8 on CIFAR-100 in the paper.
        grey: what is put there, in [0, 1]. The paper takes the training images' mean: about ½ for photographs.

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
