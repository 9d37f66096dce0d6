"""Seeded corruptions of uint8 images: the label stays, the look changes (covariate shift, csID)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray
from scipy import ndimage

from openbench.config.constraints import OneOf, Seed
from openbench.core.benchmark import Image
from openbench.data.sources.base import Found, Source, rows_found

Corruption = Callable[[NDArray[np.float64], float, np.random.Generator], NDArray[np.float64]]


def gaussian_noise(x: NDArray[np.float64], amount: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Add N(0, amount²) to each value; amount in units of [0, 1]."""
    noise: NDArray[np.float64] = rng.normal(0.0, amount, x.shape)
    return x + noise


def gaussian_blur(x: NDArray[np.float64], amount: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaussian filter over the two spatial axes; amount = σ in pixels."""
    blurred: NDArray[np.float64] = ndimage.gaussian_filter(x, (amount, amount) + (0,) * (x.ndim - 2), mode="nearest")
    return blurred


def contrast(x: NDArray[np.float64], amount: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Pull each value towards the image's mean: mean + amount·(x − mean); amount in [0, 1]."""
    mean = float(x.mean())
    return mean + amount * (x - mean)


def brightness(x: NDArray[np.float64], amount: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Add `amount` to each value, in units of [0, 1]."""
    return x + amount


def shift(x: NDArray[np.float64], amount: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Move the image by `amount` pixels in one of eight directions; black enters from the border."""
    steps = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    down, right = steps[int(rng.integers(len(steps)))]
    offset = (down * amount, right * amount) + (0,) * (x.ndim - 2)
    moved: NDArray[np.float64] = ndimage.shift(x, offset, order=1, mode="constant", cval=0.0)
    return moved


CORRUPTIONS: dict[str, Corruption] = {
    f.__name__: f for f in (gaussian_noise, gaussian_blur, contrast, brightness, shift)
}

_SMALL = 2**20  # bytes of a set that is kept
# Nothing is left of an image at far lower strengths; a filter of this width still fits into memory.
_STRONGEST = 1000


def corrupt(image: Image, kind: str, amount: float, rng: np.random.Generator) -> Image:
    """Return the corrupted image, uint8, values clipped to [0, 255] and rounded.

    Args:
        image: (h, w) or (h, w, 3) uint8.
        kind: a key of `CORRUPTIONS`.
        amount: strength in the unit that the corruption states.
        rng: the only source of randomness.
    """
    moved = CORRUPTIONS[kind](image.astype(np.float64) / 255.0, amount, rng)
    return np.rint(np.clip(moved, 0.0, 1.0) * 255.0).astype(np.uint8)


@dataclass(frozen=True)
class Corrupted(Source):
    """Another source's images after one corruption; each image draws from its own seed, so subsets do not change it.

    Args:
        of: where the clean images are.
        kind: `gaussian_noise`, `gaussian_blur`, `contrast`, `brightness` or `shift`.
        amount: strength in the unit that the corruption states.
        seed: of the random ones.
        deviation: how these images differ from the set as published.

    Raises:
        ConfigError: no such corruption, or no such strength.
    """

    of: Source
    kind: Annotated[str, OneOf(tuple(CORRUPTIONS))]
    amount: Annotated[float, Interval(ge=-_STRONGEST, le=_STRONGEST)]
    seed: Seed = 0
    deviation: str = ""

    def __post_init__(self) -> None:
        """Check the strength, which only brightness takes below 0."""
        self.require(self.kind == "brightness" or self.amount >= 0, "amount", f"a number from 0 to {_STRONGEST}")

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Where the clean images are."""
        return self.of.places(roots)

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """Corrupted versions of what the clean source has."""
        clean = self.of.find(place, keys)
        if clean is None:
            return None
        positions = np.flatnonzero(clean.present)
        rows = np.full(len(keys), -1, dtype=np.int64)
        rows[positions] = np.arange(len(positions))
        images = np.stack([clean.items[i] for i in range(len(positions))])
        draw = _Draw(self.kind, self.amount, self.seed)
        if images.nbytes > _SMALL:
            return rows_found(draw.corrupted(images, positions.tolist()), rows)
        return rows_found(_kept(draw, images.tobytes(), images.shape, tuple(positions.tolist())).copy(), rows)


@dataclass(frozen=True)
class _Draw:
    kind: str
    amount: float
    seed: int

    def corrupted(self, images: NDArray[np.uint8], positions: Sequence[int]) -> NDArray[np.uint8]:
        """Corrupt images (n, h, w[, 3]), each as its position among the keys has it drawn."""
        moved = np.empty_like(images)
        for row, position in enumerate(positions):
            rng = np.random.default_rng((self.seed, position))
            moved[row] = corrupt(images[row], self.kind, self.amount, rng)
        return moved


@lru_cache(maxsize=32)
def _kept(draw: _Draw, pixels: bytes, shape: tuple[int, ...], positions: tuple[int, ...]) -> NDArray[np.uint8]:
    """A small set, such as the digits: a process that opens a benchmark again does not corrupt it again."""
    return draw.corrupted(np.frombuffer(pixels, np.uint8).reshape(shape), positions)
