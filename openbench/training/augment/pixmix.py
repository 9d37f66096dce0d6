"""PixMix: images added to and multiplied by pictures of rich structure."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Interval
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Count, Positive, Seed
from openbench.training.augment.base import Augmentation
from openbench.training.augment.fractals import fractals
from openbench.training.augment.operations import random_operation
from openbench.training.augment.picture_folder import PictureFolder

# Keeps a negative power finite, as in the authors' code.
_LEAST = 1e-37


@dataclass(frozen=True)
class PixMix(Augmentation):
    """Mixes an image up to k times with a picture of the mixing set or, half of the time, with itself changed.

    Half of the time the image itself is put through a random operation first. Each mix is, at even odds, additive,
    a(2x − 1) + b(2y − 1) mapped back to [0, 1], or multiplicative, (2x)^a (2y)^b / 2, then cut off to [0, 1]; at even
    odds a ~ Beta(β, 1), b ~ Beta(1, β), or a = 1 + Beta(1, β), b = −Beta(1, β).

    Args:
        rounds: k ≥ 1; the number of mixes is uniform on {0, …, k}; 4.
        beta: β > 0; 3.
        severity: of the operations, 1 to 10; 3.
        folder: the mixing set; None: fractals drawn here. The authors distribute theirs: fractals by artists, and
            feature visualisations.
        drawn: how many fractals are drawn.
        seed: of these fractals.

    Reference: Hendrycks et al., PixMix: Dreamlike Pictures Comprehensively Improve Safety Measures, CVPR 2022,
    arXiv 2112.05135.
    """

    rounds: Count = 4
    beta: Positive = 3.0
    severity: Annotated[float, Interval(ge=1, le=10)] = 3.0
    folder: PictureFolder | None = None
    drawn: Count = 300
    seed: Seed = 0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return mixed images."""
        # NumPy draws from Beta; its generator is seeded from the one passed in.
        rng = np.random.default_rng(int(torch.randint(0, 2**62, (), generator=generator)))
        pixels = images.cpu().numpy()
        pictures = self.pictures(*pixels.shape[1:])
        mixed = np.stack([self.mixed(image, pictures, rng) for image in pixels])
        return torch.from_numpy(mixed).to(images.device)

    def pictures(self, height: int, width: int, channels: int) -> NDArray[np.uint8]:
        """Return the mixing set (m, height, width, channels) uint8."""
        side = max(height, width)
        found = fractals(self.drawn, side, self.seed) if self.folder is None else self.folder.pictures(side)
        found = found[:, :height, :width]
        return found if channels == 3 else found.mean(axis=3, keepdims=True).round().astype(np.uint8)

    def mixed(
        self, image: NDArray[np.uint8], pictures: NDArray[np.uint8], rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Return one image (h, w, channels) mixed at random."""
        result = (random_operation(image, self.severity, rng) if rng.random() < 0.5 else image) / 255
        for _ in range(int(rng.integers(self.rounds + 1))):
            of_itself = rng.random() < 0.5
            other = random_operation(image, self.severity, rng) if of_itself else pictures[rng.integers(len(pictures))]
            mix = added if rng.random() < 0.5 else multiplied
            result = np.clip(mix(result, other / 255, *self.powers(rng)), 0, 1)
        return np.asarray((255 * result).round().astype(np.uint8))

    def powers(self, rng: np.random.Generator) -> tuple[float, float]:
        """Return a and b."""
        if rng.random() < 0.5:
            return float(rng.beta(self.beta, 1)), float(rng.beta(1, self.beta))
        return 1 + float(rng.beta(1, self.beta)), -float(rng.beta(1, self.beta))


def added(x: NDArray[np.float64], y: NDArray[np.float64], a: float, b: float) -> NDArray[np.float64]:
    """Return (a(2x − 1) + b(2y − 1) + 1)/2 of images in [0, 1]."""
    return (a * (2 * x - 1) + b * (2 * y - 1) + 1) / 2


def multiplied(x: NDArray[np.float64], y: NDArray[np.float64], a: float, b: float) -> NDArray[np.float64]:
    """Return (2x)^a (2y)^b / 2 of images in [0, 1]; 0 to a negative power is large, not infinite."""
    return np.asarray(np.power(2 * x, a) * np.power(np.maximum(2 * y, _LEAST), b) / 2)
