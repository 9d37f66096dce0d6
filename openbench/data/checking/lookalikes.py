"""Images that look alike though their bytes differ: saved again, scaled, made lighter; found by perceptual hash."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from scipy.fft import dctn

from openbench.core.benchmark import Benchmark, Image, Split
from openbench.data.checking.verify import must_differ
from openbench.errors import DataError
from openbench.say import Say

_SIDE = 32
_LOW = 8
_BITS = 8  # of 64; unrelated photographs differ in about 32
_LEVELS = 12.0  # root mean square difference of thumbnails, in grey levels
_PLAIN = 4.0  # images with a smaller deviation have no content to compare
_ROWS = 1 << 12


@dataclass(frozen=True)
class Lookalike:
    """Two images on sides that must be apart.

    Args:
        first: `role/name` and key of one.
        second: of the other.
        difference: root mean square difference of their thumbnails, in grey levels of 255; 0 = the same picture.
    """

    first: tuple[str, str]
    second: tuple[str, str]
    difference: float

    def __str__(self) -> str:
        return f"{self.first[0]} '{self.first[1]}' ~ {self.second[0]} '{self.second[1]}' ({self.difference:.1f})"


@dataclass(frozen=True, eq=False)
class Looks:
    """What is compared of a split.

    Args:
        bits: (n,) uint64 perceptual hash.
        thumbnails: (n, 32, 32) uint8.
        kept: (n,) bool: readable and not plain.
    """

    bits: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]
    kept: NDArray[np.bool_]


def lookalikes(benchmark: Benchmark, say: Say) -> list[Lookalike]:
    """Return the pairs of images that look alike across splits that must be apart, most alike first.

    A hash of 64 bits, one per low frequency, proposes a pair; the difference of the thumbnails decides.
    """
    splits = {f"{split.role}/{split.name}": split for split in benchmark.splits()}
    looks: dict[str, Looks] = {}
    for where, split in splits.items():
        say(f"look at {where}: {len(split)} images")
        looks[where] = looks_of(split)
    found = [pair for a, b in _pairs(splits) for pair in _between((a, splits[a], looks[a]), (b, splits[b], looks[b]))]
    return sorted(found, key=lambda pair: pair.difference)


def looks_of(split: Split) -> Looks:
    """Return hashes and thumbnails of a split; unreadable images are left to the other checks."""
    thumbnails = np.zeros((len(split), _SIDE, _SIDE), dtype=np.uint8)
    kept = np.zeros(len(split), dtype=bool)
    for index in range(len(split)):
        try:
            thumbnails[index] = thumbnail(split.items[index])
        except DataError:
            continue
        kept[index] = thumbnails[index].std() >= _PLAIN
    return Looks(perceptual_hash(thumbnails), thumbnails, kept)


def thumbnail(image: Image) -> NDArray[np.uint8]:
    """Return the image in grey, averaged to 32×32."""
    picture = Pillow.fromarray(np.ascontiguousarray(image)).convert("L")
    enlarge = min(picture.size) < _SIDE
    method = Pillow.Resampling.BILINEAR if enlarge else Pillow.Resampling.BOX
    return np.asarray(picture.resize((_SIDE, _SIDE), method))


def perceptual_hash(thumbnails: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return 64 bits per thumbnail: which of the lowest 8×8 frequencies lie above their median, without the mean.

    Args:
        thumbnails: (n, 32, 32).
    """
    bits = np.zeros((len(thumbnails), _LOW * _LOW), dtype=bool)
    for start in range(0, len(thumbnails), _ROWS):
        rows = dctn(thumbnails[start : start + _ROWS].astype(np.float32), axes=(1, 2), norm="ortho")
        low = rows[:, :_LOW, :_LOW].reshape(len(rows), -1)
        bits[start : start + _ROWS, 1:] = low[:, 1:] > np.median(low[:, 1:], axis=1, keepdims=True)
    packed: NDArray[np.uint64] = np.packbits(bits, axis=1).view(np.uint64).reshape(-1)
    return packed


def _pairs(splits: Mapping[str, Split]) -> Iterator[tuple[str, str]]:
    for (a, first), (b, second) in combinations(splits.items(), 2):
        if must_differ(first.role, second.role):
            yield a, b


def _between(first: tuple[str, Split, Looks], second: tuple[str, Split, Looks]) -> Iterator[Lookalike]:
    (a, split_a, looks_a), (b, split_b, looks_b) = first, second
    rows_a, rows_b = np.flatnonzero(looks_a.kept), np.flatnonzero(looks_b.kept)
    # A block of at most 2**25 pairs at a time.
    step = max(1, (1 << 25) // max(1, len(rows_b)))
    for start in range(0, len(rows_a), step):
        block = rows_a[start : start + step]
        apart = np.bitwise_count(looks_a.bits[block][:, None] ^ looks_b.bits[rows_b][None, :])
        for i, j in zip(*np.nonzero(apart <= _BITS), strict=True):
            one, other = int(block[i]), int(rows_b[j])
            difference = _difference(looks_a.thumbnails[one], looks_b.thumbnails[other])
            if difference <= _LEVELS:
                yield Lookalike((a, split_a.keys[one]), (b, split_b.keys[other]), difference)


def _difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """The difference without a common shift in brightness: a picture made lighter is still the same picture."""
    gap = a.astype(np.float64) - b
    return float(np.sqrt(np.mean((gap - gap.mean()) ** 2)))
