"""Near-duplicates: images that were saved again, scaled or made lighter, found by a perceptual hash."""

import logging
from contextlib import suppress
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from scipy.fft import dctn

from openbench.core.benchmark import Benchmark, Image, Split, must_differ
from openbench.errors import DataError

logger = logging.getLogger(__name__)

_SIDE = 32
_LOW = 8
_BITS = 8  # of 64; unrelated photographs differ in about 32
_LEVELS = 12.0  # root mean square difference of thumbnails, in grey levels
_PLAIN = 4.0  # images with a smaller deviation have no content to compare
_ROWS = 1 << 12


def lookalikes(benchmark: Benchmark) -> list[str]:
    """Return a line for each two similar images in splits that must not share any, the most similar ones first.

    A hash of 64 bits, one per low frequency, proposes a pair; the difference of the thumbnails decides, which the line
    ends with: their root mean square difference, in grey levels of 255.
    """
    prepared = []
    for split in benchmark.splits():
        where = f"{split.role}/{split.name}"
        logger.info(f"look at {where}: {len(split)} images")
        rows, thumbnails = _thumbnails(split)
        prepared.append((where, split, rows, thumbnails, perceptual_hash(thumbnails)))
    pairs: list[tuple[float, str]] = []
    for (a, first, rows_a, images_a, bits_a), (b, second, rows_b, images_b, bits_b) in combinations(prepared, 2):
        if not must_differ(first.role, second.role):
            continue
        step = max(1, (1 << 25) // max(1, len(bits_b)))  # a block of at most 2**25 pairs at a time
        for start in range(0, len(bits_a), step):
            distance = np.bitwise_count(bits_a[start : start + step, None] ^ bits_b[None, :])
            for i, j in zip(*np.nonzero(distance <= _BITS), strict=True):
                difference = _difference(images_a[start + i], images_b[j])
                if difference <= _LEVELS:
                    keys = f"{a} '{first.keys[rows_a[start + i]]}' ~ {b} '{second.keys[rows_b[j]]}'"
                    pairs.append((difference, f"{keys} ({difference:.1f})"))
    return [text for _, text in sorted(pairs)]


def _thumbnails(split: Split) -> tuple[list[int], NDArray[np.uint8]]:
    """Positions and thumbnails of the images with some content; unreadable ones are left to the other checks."""
    rows, thumbnails = list[int](), [np.zeros((0, _SIDE, _SIDE), np.uint8)]
    for index in range(len(split)):
        with suppress(DataError):
            small = thumbnail(split.items[index])
            if small.std() >= _PLAIN:
                rows.append(index)
                thumbnails.append(small[None])
    return rows, np.concatenate(thumbnails)


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
    return np.packbits(bits, axis=1).view(np.uint64).reshape(-1)


def _difference(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """The difference without a common shift in brightness: a picture made lighter is still the same picture."""
    gap = a.astype(np.float64) - b
    return float(np.sqrt(np.mean((gap - gap.mean()) ** 2)))
