"""The nine image operations that AugMix and PixMix draw from, each at a random strength."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import ImageOps

Pixels = NDArray[np.uint8]
OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)


def random_operation(image: Pixels, severity: float, rng: np.random.Generator) -> Pixels:
    """Return an image put through an operation that is drawn, at a level uniform in [0.1, severity] out of 10.

    Args:
        image: (h, w, channels) uint8, 1 or 3 channels.
        severity: 1 to 10.
        rng: draws operation, level and direction.
    """
    name = OPERATIONS[rng.integers(len(OPERATIONS))]
    level = rng.uniform(0.1, severity) / 10
    return operated(image, name, level, 1 if rng.random() < 0.5 else -1)


def operated(image: Pixels, name: str, level: float, sign: int = 1) -> Pixels:
    """Return an image put through an operation; what comes in at the edges is black.

    Args:
        image: (h, w, channels) uint8, 1 or 3 channels.
        name: one of OPERATIONS.
        level: 0 to 1. At 1: none of 4 bits is left, every pixel is inverted, a turn of 30°, a shear of 0.3, a shift by
            a third.
        sign: direction of turn, shear and shift.

    Reference:
        Hendrycks et al., AugMix, arXiv:1912.02781, and the authors' code, with the same ranges and whole numbers.
    """
    picture = Pillow.fromarray(image if image.shape[2] == 3 else image[..., 0])
    if name == "autocontrast":
        changed = ImageOps.autocontrast(picture)
    elif name == "equalize":
        changed = ImageOps.equalize(picture)
    elif name == "posterize":
        changed = ImageOps.posterize(picture, 4 - int(level * 4))
    elif name == "solarize":
        changed = ImageOps.solarize(picture, 256 - int(level * 256))
    elif name == "rotate":
        changed = picture.rotate(sign * int(level * 30), resample=Pillow.Resampling.BILINEAR)
    else:
        matrix = _matrix(name, level * sign, picture.size)
        changed = picture.transform(picture.size, Pillow.Transform.AFFINE, matrix, resample=Pillow.Resampling.BILINEAR)
    pixels = np.asarray(changed)
    return pixels if image.shape[2] == 3 else pixels[..., None]


def _matrix(name: str, amount: float, size: tuple[int, int]) -> tuple[float, float, float, float, float, float]:
    """The affine map by which Pillow takes a point of the result back to the image."""
    width, height = size
    return {
        "shear_x": (1.0, 0.3 * amount, 0.0, 0.0, 1.0, 0.0),
        "shear_y": (1.0, 0.0, 0.0, 0.3 * amount, 1.0, 0.0),
        "translate_x": (1.0, 0.0, float(int(amount * width / 3)), 0.0, 1.0, 0.0),
        "translate_y": (1.0, 0.0, 0.0, 0.0, 1.0, float(int(amount * height / 3))),
    }[name]
