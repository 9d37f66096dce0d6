"""PixMix: images added to and multiplied by pictures of rich structure, such as fractals drawn here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from annotated_types import Interval
from numpy.typing import NDArray
from PIL import Image as Pillow, ImageOps
from torch import Tensor

from openbench.config.constraints import Count, Positive, Seed
from openbench.training.augment.augmentations import Augmentation
from openbench.training.augment.reading import PictureFolder

Pixels = NDArray[np.uint8]
OPERATIONS = (
    *("autocontrast", "equalize", "posterize", "rotate", "solarize"),
    *("shear_x", "shear_y", "translate_x", "translate_y"),
)
_POINTS, _STEPS, _SETTLING = 1000, 60, 20
# Keeps a negative power finite, as in the authors' code.
_LEAST = 1e-37


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
    """Return an image put through an operation; the edges are filled with black.

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
    bilinear, amount, turn = Pillow.Resampling.BILINEAR, sign * level, sign * int(level * 30)

    def affine(*matrix: float) -> Pillow.Image:
        """The picture by the map that takes a point of the result back to it."""
        return picture.transform(picture.size, Pillow.Transform.AFFINE, matrix, resample=bilinear)

    operations: dict[str, Callable[[], Pillow.Image]] = {
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "posterize": lambda: ImageOps.posterize(picture, 4 - int(level * 4)),
        "solarize": lambda: ImageOps.solarize(picture, 256 - int(level * 256)),
        "rotate": lambda: picture.rotate(turn, resample=bilinear),
        "shear_x": lambda: affine(1.0, 0.3 * amount, 0.0, 0.0, 1.0, 0.0),
        "shear_y": lambda: affine(1.0, 0.0, 0.0, 0.3 * amount, 1.0, 0.0),
        "translate_x": lambda: affine(1.0, 0.0, float(int(amount * picture.width / 3)), 0.0, 1.0, 0.0),
        "translate_y": lambda: affine(1.0, 0.0, 0.0, 0.0, 1.0, float(int(amount * picture.height / 3))),
    }
    pixels = np.asarray(operations[name]())
    return pixels if image.shape[2] == 3 else pixels[..., None]


def chaos_game(
    maps: NDArray[np.float64], weights: NDArray[np.float64], steps: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return points on the attractor of x ↦ A_k x + b_k, and which map each came from.

    Many points walk at once; the first steps, on the way to the attractor, are left out.

    Args:
        maps: (k, 2, 3), A and b side by side; each A shrinks all distances.
        weights: (k,) probabilities.
        steps: kept steps of each walker.
        rng: draws the maps.

    Returns:
        (n, 2) and (n,).
    """
    which = np.searchsorted(np.cumsum(weights)[:-1], rng.random((_SETTLING + steps, _POINTS)), side="right")
    a, b, c, d, e, f = (maps.reshape(-1, 6)[which, i] for i in range(6))
    x = y = np.zeros(_POINTS)
    points = np.empty((_SETTLING + steps, _POINTS, 2))
    for step in range(_SETTLING + steps):
        x, y = a[step] * x + b[step] * y + c[step], d[step] * x + e[step] * y + f[step]
        points[step, :, 0], points[step, :, 1] = x, y
    return points[_SETTLING:].reshape(-1, 2), which[_SETTLING:].reshape(-1)


def random_system(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return 2 to 6 maps (k, 2, 3) and their probabilities (k,), in proportion to |det A|.

    A = R(θ)·diag(s, s·r)·R(φ) with s in [0.4, 0.85], r in [0.3, 1], one in three mirrored; b is uniform in [−1, 1]².
    All s < 1: there is exactly one attractor, and it is bounded.
    """
    count = int(rng.integers(2, 7))
    angles = rng.uniform(0, 2 * np.pi, (count, 2))
    large = rng.uniform(0.4, 0.85, count)
    small = large * rng.uniform(0.3, 1, count) * np.where(rng.random(count) < 1 / 3, -1, 1)
    turns = np.stack([np.cos(angles), -np.sin(angles), np.sin(angles), np.cos(angles)], axis=-1).reshape(-1, 2, 2, 2)
    stretch = np.zeros((count, 2, 2))
    stretch[:, 0, 0], stretch[:, 1, 1] = large, small
    linear = turns[:, 0] @ stretch @ turns[:, 1]
    shift = rng.uniform(-1, 1, (count, 2, 1))
    weights = np.maximum(np.abs(large * small), 0.01)
    return np.concatenate([linear, shift], axis=2), weights / weights.sum()


def fractal(side: int, rng: np.random.Generator) -> Pixels:
    """Return a picture (side, side, 3) uint8: a coloured attractor on a plain ground.

    Brightness grows with the logarithm of how often a pixel is visited. Each map has a colour; a point has the mean of
    those of its last two maps, so that copies of the whole differ in hue.
    """
    maps, weights = random_system(rng)
    points, which = chaos_game(maps, weights, _STEPS, rng)
    colours, ground = rng.uniform(0.2, 1, (len(maps), 3)), rng.uniform(0, 0.6, 3)
    # A walker's points lie _POINTS apart.
    before = np.concatenate([which[:_POINTS], which[:-_POINTS]])
    shades = (colours[which] + colours[before]) / 2
    low, high = np.quantile(points, (0.005, 0.995), axis=0)
    places = ((points - low) / np.maximum(high - low, 1e-9) * (side - 1)).round().astype(np.int64)
    inside = ((places >= 0) & (places < side)).all(axis=1)
    flat = places[inside, 1] * side + places[inside, 0]
    visits = np.bincount(flat, minlength=side * side)
    sums = np.stack([np.bincount(flat, shades[inside, c], side * side) for c in range(3)], axis=1)
    density = (np.log1p(visits) / np.log1p(visits.max()))[:, None]
    hue = sums / np.maximum(visits, 1)[:, None]
    picture = np.where(visits[:, None] > 0, density * hue + (1 - density) * ground, ground)
    return np.asarray((255 * picture).round().astype(np.uint8).reshape(side, side, 3))


@lru_cache(maxsize=4)
def fractals(count: int, side: int, seed: int) -> Pixels:
    """Return pictures (count, side, side, 3) uint8; the same for the same arguments, whatever else was drawn.

    Reference:
        Hutchinson: Fractals and self similarity, Indiana Univ. Math. J. 30, 1981 (attractors); Barnsley, Demko:
        Iterated function systems and the global construction of fractals, Proc. R. Soc. A 399, 1985 (random walks).
    """
    return np.stack([fractal(side, np.random.default_rng([seed, number])) for number in range(count)])


@dataclass(frozen=True)
class PixMix(Augmentation):
    """Mixes an image up to k times with a picture of the mixing set or, half of the time, with a changed copy.

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

    def pictures(self, height: int, width: int, channels: int) -> Pixels:
        """Return the mixing set (m, height, width, channels) uint8."""
        side = max(height, width)
        square = fractals(self.drawn, side, self.seed) if self.folder is None else self.folder.pictures(side)
        pictures = square[:, :height, :width]
        return pictures if channels == 3 else pictures.mean(axis=3, keepdims=True).round().astype(np.uint8)

    def mixed(self, image: Pixels, pictures: Pixels, rng: np.random.Generator) -> Pixels:
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
