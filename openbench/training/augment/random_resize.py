"""What happens to an image as it is read, before all have one size: a random part of it is resized to the input."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.config.constraints import Checked, Positive, Share

_TRIES = 10


class Reading(Checked, ABC):
    """Gives a stored image the network's size at random, in place of evaluation's resize and crop.

    Final subclasses are frozen dataclasses; their fields enter the checkpoint's digest.

    Attributes:
        version: raised when a change alters the images that come out; it enters that digest, too.
    """

    version: ClassVar[int] = 1

    def replaced(self, key: str, rng: np.random.Generator) -> Path | None:
        """Return a file to be read instead of the image with a key; None (the default) for the image itself."""
        return None

    @abstractmethod
    def __call__(self, image: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return an image of the wanted size.

        Args:
            image: (h, w) or (h, w, 3) uint8, not to be changed.
            side: of the result, (side, side) or (side, side, 3).
            rng: for this image alone.
        """


@dataclass(frozen=True)
class RandomResizedCrop(Reading):
    """Returns a part of random area and aspect at a uniformly random place, resized bilinearly.

    Area is uniform in `scale` times the image's, log aspect uniform in log `ratio`. After ten draws that do not fit,
    the largest central part whose aspect is in `ratio` is taken.

    Args:
        scale: least and largest share of the area; 0.08 and 1.
        ratio: least and largest width / height; 3/4 and 4/3.

    Reference:
        Szegedy et al.: Going deeper with convolutions, CVPR 2015, arXiv:1409.4842, section 6; drawn as in
        torchvision.transforms.v2.RandomResizedCrop.
    """

    scale: tuple[Share, Share] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        """Check the order; lists from yaml become tuples."""
        for name in ("scale", "ratio"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            self.require(values[0] <= values[1], name, "two numbers, first ≤ second")

    def __call__(self, image: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return a resized part."""
        top, left, height, width = self.part(image.shape[0], image.shape[1], rng)
        # Cut first: Pillow's own `box` would let the filter see pixels beyond the part's edge.
        picture = Pillow.fromarray(np.ascontiguousarray(image[top : top + height, left : left + width]))
        return np.asarray(picture.resize((side, side), Pillow.Resampling.BILINEAR))

    def part(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return top, left, height, width of a random part of an image."""
        low, high = (math.log(value) for value in self.ratio)
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
        w = min(width, round(height * self.ratio[1]))
        h = min(height, round(width / self.ratio[0]))
        return (height - h) // 2, (width - w) // 2, h, w
