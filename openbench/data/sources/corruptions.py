"""Sources of corrupted images: the 15 common corruptions, drawn per image, or a plain one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval
from scipy import ndimage

from openbench import paths
from openbench.config.constraints import Count, OneOf, Seed
from openbench.core.benchmark import Image
from openbench.core.preprocess import Preprocess
from openbench.core.request import Corruption
from openbench.data.loading import cropped
from openbench.data.sources.base import FoundImages, MadeItems, Source
from openbench.data.sources.imagenet_c import FAMILIES, KINDS, SEVERITIES, Pixels, Rng, corrupt, gaussian_noise
from openbench.digest import generator_of
from openbench.errors import ConfigError

# Nothing is left of an image at far lower strengths; a filter of this width still fits into memory.
_STRONGEST = 1000


@dataclass(frozen=True)
class CommonCorruptions(Source):
    """Another set's images, corrupted as in ImageNet-C. An image's corruption depends on its key and the seed only.

    Args:
        of: the clean images' sources by name, e.g. those of `benchmark.id.test`.
        kind: a corruption, a family (`noise`, `blur`, `weather`, `digital`), or `all`: drawn per image.
        severity: 1 to 5, or `all`: drawn per image.
        seed: of all that is drawn.
        resize: shorter side before the corruption, whose strength is in pixels; None = as stored.
        crop: side of the centre crop before the corruption; None = as stored.

    Raises:
        ConfigError: no such corruption or severity.
    """

    version: ClassVar[int] = Corruption.version

    of: Mapping[str, Source]
    kind: Annotated[str, OneOf((*KINDS, *FAMILIES, "all"))] = "all"
    severity: Literal[1, 2, 3, 4, 5, "all"] = "all"
    seed: Seed = 0
    resize: Count | None = None
    crop: Count | None = None

    def __post_init__(self) -> None:
        """Check the geometry."""
        if (self.resize is None) != (self.crop is None):
            raise ConfigError(f"corruption: resize is {self.resize} and crop {self.crop} — give both or neither")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The corruptions that may be drawn."""
        return KINDS if self.kind == "all" else FAMILIES.get(self.kind, (self.kind,))

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the paths of the clean images."""
        return list(dict.fromkeys(place for source in self.of.values() for place in source.places(roots)))

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Corrupted versions of what the clean sources have there."""
        roots = paths.data_roots()
        places = (source.find(place, keys) for source in self.of.values() if place in source.places(roots))
        clean = next((found for found in places if found is not None), None)
        if clean is None:
            return None
        there = list(compress(keys, clean.present))
        return FoundImages(MadeItems(len(there), lambda at: self.apply(clean.items[at], there[at])), clean.present)

    def apply(self, image: Image, key: str) -> Image:
        """Return the corrupted version of one image."""
        if self.resize is not None and self.crop is not None:
            image = cropped(image, Preprocess(resize=self.resize, crop=self.crop))
        rng = generator_of(self.seed, key)
        # Both are always drawn, so that fixing one does not change the other.
        kind, severity = self.kinds[int(rng.integers(len(self.kinds)))], int(rng.integers(1, len(SEVERITIES) + 1))
        return corrupt(image, kind, severity if self.severity == "all" else int(self.severity), rng)


def gaussian_blur(x: Pixels, amount: float, rng: Rng) -> Pixels:
    """Gaussian filter over the two spatial axes; amount = σ in pixels."""
    return ndimage.gaussian_filter(x, (amount, amount) + (0,) * (x.ndim - 2), mode="nearest")


def contrast(x: Pixels, amount: float, rng: Rng) -> Pixels:
    """Pull each value towards the image's mean: mean + amount·(x − mean); amount in [0, 1]."""
    mean = float(x.mean())
    return mean + amount * (x - mean)


def brightness(x: Pixels, amount: float, rng: Rng) -> Pixels:
    """Add `amount` to each value, in units of [0, 1]."""
    return x + amount


def shift(x: Pixels, amount: float, rng: Rng) -> Pixels:
    """Move the image by `amount` pixels in one of eight directions; black enters from the border."""
    steps = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if (a, b) != (0, 0)]
    down, right = steps[int(rng.integers(len(steps)))]
    offset = (down * amount, right * amount) + (0,) * (x.ndim - 2)
    return ndimage.shift(x, offset, order=1, mode="constant", cval=0.0)


CORRUPTIONS: dict[str, Callable[[Pixels, Any, Rng], Pixels]] = {
    f.__name__: f for f in (gaussian_noise, gaussian_blur, contrast, brightness, shift)
}


def corrupted(image: Image, kind: str, amount: float, rng: np.random.Generator) -> Image:
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

    Raises:
        ConfigError: no such corruption, or no such strength.
    """

    of: Source
    kind: Annotated[str, OneOf(tuple(CORRUPTIONS))]
    amount: Annotated[float, Interval(ge=-_STRONGEST, le=_STRONGEST)]
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the strength, which only brightness takes below 0."""
        self.require(self.kind == "brightness" or self.amount >= 0, "amount", f"a number from 0 to {_STRONGEST}")

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Return the paths of the clean images."""
        return self.of.places(roots)

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """Corrupted versions of what the clean source has."""
        clean = self.of.find(place, keys)
        if clean is None:
            return None
        positions = np.flatnonzero(clean.present).tolist()

        def make(at: int) -> Image:
            return corrupted(clean.items[at], self.kind, self.amount, np.random.default_rng((self.seed, positions[at])))

        return FoundImages(MadeItems(len(positions), make), clean.present)
