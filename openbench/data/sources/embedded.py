"""Sets that need no download: scikit-learn's digits and photographs, and images drawn from a seed."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.config.constraints import Seed
from openbench.core.benchmark import Image
from openbench.data.sources.base import FoundImages, MadeItems, Source
from openbench.digest import generator_of

_SIDE = 8


class Embedded(Source):
    """A source that makes the image of any key; keys are `<set>/<class>/<number>`."""

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """All keys."""

        def make(at: int) -> Image:
            *_, class_name, number = keys[at].split("/")
            return self.image(class_name, int(number))

        of = [(self, key) for key in keys]
        return FoundImages(MadeItems(len(keys), make, of), np.ones(len(keys), dtype=bool))

    @abstractmethod
    def image(self, class_name: str, number: int) -> Image:
        """The image (8, 8) uint8 of a class and number."""


@dataclass(frozen=True)
class SklearnDigits(Embedded):
    """The 1 797 handwritten digits of scikit-learn, 8×8, 17 grey levels; the number is the row in `load_digits`."""

    def image(self, class_name: str, number: int) -> Image:
        """Row `number`, its 0…16 spread over 0…255."""
        return _digits()[number]


@dataclass(frozen=True)
class Drawn(Embedded):
    """A source whose images are drawn from a seed.

    Args:
        seed: of the draw, with the class and the number of the image.
    """

    seed: Seed = 0


@dataclass(frozen=True)
class PhotoPatches(Drawn):
    """Patches of scikit-learn's two photographs (`china`, `flower`): 32×32 windows in grey, averaged to 8×8."""

    def image(self, class_name: str, number: int) -> Image:
        """The window of that number."""
        photo, window = _photo(class_name), 4 * _SIDE
        rng = generator_of(self.seed, class_name, number)
        top = int(rng.integers(photo.shape[0] - window + 1))
        left = int(rng.integers(photo.shape[1] - window + 1))
        cut = photo[top : top + window, left : left + window].astype(np.float64)
        return _as_grey(cut.reshape(_SIDE, 4, _SIDE, 4).mean(axis=(1, 3)) / 255.0)


@dataclass(frozen=True)
class Noise(Drawn):
    """Pure noise, 8×8: `uniform` over all grey levels, or `normal` with mean 1/2 and deviation 1/4, clipped."""

    def image(self, class_name: str, number: int) -> Image:
        """The noise image of that number."""
        rng, shape = generator_of(self.seed, class_name, number), (_SIDE, _SIDE)
        return _as_grey(rng.random(shape) if class_name == "uniform" else rng.normal(0.5, 0.25, shape))


@dataclass(frozen=True)
class Textures(Drawn):
    """Textures, 8×8: `grating` (a sinusoid of random angle and wavelength), `checks`, `blobs` (two soft spots)."""

    def image(self, class_name: str, number: int) -> Image:
        """The texture of that number."""
        y, x = np.mgrid[:_SIDE, :_SIDE].astype(np.float64)
        kind = {"grating": _grating, "checks": _checks, "blobs": _blobs}[class_name]
        return _as_grey(kind(x, y, generator_of(self.seed, class_name, number)))


def _grating(x: NDArray[np.float64], y: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    angle, wavelength, phase = rng.uniform(0, np.pi), rng.uniform(2.5, 8.0), rng.uniform(0, 2 * np.pi)
    wave = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / wavelength + phase)
    return 0.5 + rng.uniform(0.25, 0.5) * wave


def _checks(x: NDArray[np.float64], y: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    side, right, down = int(rng.integers(1, 4)), int(rng.integers(4)), int(rng.integers(4))
    dark, light = rng.uniform(0.0, 0.4), rng.uniform(0.6, 1.0)
    odd = ((x + right) // side + (y + down) // side) % 2
    return np.where(odd == 1, light, dark)


def _blobs(x: NDArray[np.float64], y: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    total = np.zeros_like(x)
    for _ in range(2):
        centre_x, centre_y, width = rng.uniform(0, _SIDE), rng.uniform(0, _SIDE), rng.uniform(1.0, 2.5)
        total += rng.uniform(0.5, 1.0) * np.exp(-((x - centre_x) ** 2 + (y - centre_y) ** 2) / (2 * width**2))
    return total


def _as_grey(x: NDArray[np.float64]) -> Image:
    return np.rint(np.clip(x, 0.0, 1.0) * 255.0).astype(np.uint8)


@lru_cache(maxsize=1)
def _digits() -> NDArray[np.uint8]:
    from sklearn.datasets import load_digits

    return _as_grey(load_digits().images / 16.0)


@lru_cache(maxsize=2)
def _photo(name: str) -> NDArray[np.uint8]:
    from sklearn.datasets import load_sample_image

    return np.asarray(Pillow.fromarray(load_sample_image(f"{name}.jpg")).convert("L"))
