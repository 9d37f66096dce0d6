"""Drawn weather: plasma clouds, frost, flakes in motion; what the corruptions of that family are made of."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Pixels = NDArray[np.float64]


def plasma(side: int, decay: float, rng: np.random.Generator) -> Pixels:
    """Return a random height map in [0, 1] by the diamond-square algorithm, on a torus.

    Args:
        side: least side of the map, which is rounded up to a power of two.
        decay: the random part falls by decay² from one scale to the next.
        rng: the only source of randomness.

    Returns:
        (m, m), m ≥ side a power of two, at least 2.
    """
    size = max(2, 1 << (side - 1).bit_length())
    heights = np.zeros((size, size))
    step, roughness = size, 100.0
    while step >= 2:
        half, spread = step // 2, roughness**2

        def settle(total: Pixels, spread: float = spread) -> Pixels:
            return total / 4 + rng.uniform(-spread, spread, total.shape)

        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        heights[half::step, half::step] = settle(pairs + np.roll(pairs, -1, axis=1))
        centres = heights[half::step, half::step]
        along = centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        heights[::step, half::step] = settle(along)
        down = centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        heights[half::step, ::step] = settle(down)
        step, roughness = half, roughness / decay
    heights -= heights.min()
    result: Pixels = heights / heights.max()
    return result


def frost_layer(height: int, width: int, rng: np.random.Generator) -> Pixels:
    """Return drawn frost: bluish crystals, bright along the ridges of a plasma, with fine branches across them.

    Brightness and contrast are about those of the official photographs: mean .58, .65, .70, deviation .12 per channel.

    Returns:
        (height, width, 3) in [0, 1].
    """
    side = max(height, width)
    coarse = _ridges(plasma(side, 1.6, rng))
    fine = _ridges(plasma(side, 1.15, rng))
    ice = (0.65 * coarse + 0.35 * fine)[:height, :width]
    spread = float(ice.std()) or 1.0
    level = 0.12 * (ice - ice.mean()) / spread
    result: Pixels = np.clip(np.array([0.58, 0.65, 0.70]) + level[..., None], 0.0, 1.0)
    return result


def motion_kernel(radius: int, sigma: float, angle: float) -> Pixels:
    """Return the correlation kernel of a motion: weights e^(−i²/2σ²), i = 0 … 2·radius, at whole pixels on a line.

    Args:
        radius: half the length in pixels.
        sigma: how fast the weights fall, in pixels.
        angle: of the line, in degrees.

    Returns:
        (2r + 1, 2r + 1) with r = 2·radius; sums to 1.
    """
    reach = 2 * radius
    weights = np.exp(-(np.arange(reach + 1) ** 2) / (2.0 * sigma**2))
    weights /= weights.sum()
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    radians = math.radians(angle)
    for i, weight in enumerate(weights):
        down = math.ceil(i * math.sin(radians) - 0.5)
        right = math.ceil(i * math.cos(radians) - 0.5)
        kernel[reach + down, reach + right] += weight
    return kernel


def zoomed(x: Pixels, factor: float) -> Pixels:
    """Return the centre of an image magnified to the image's size, linearly.

    Args:
        x: (h, w, c).
        factor: ≥ 1.
    """
    height, width = x.shape[:2]
    inner = [math.ceil(side / factor) for side in (height, width)]
    top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
    cut = x[top : top + inner[0], left : left + inner[1]]
    # Without "nearest", rounding may put the last sample outside, which gives a black border.
    large = ndimage.zoom(cut, (factor, factor, 1), order=1, mode="nearest")
    # Rounding may leave a pixel too few: the border is repeated.
    short = [max(0, side - got) for side, got in zip((height, width), large.shape[:2], strict=True)]
    if any(short):
        large = np.pad(large, ((0, short[0]), (0, short[1]), (0, 0)), mode="edge")
    top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
    result: Pixels = large[top : top + height, left : left + width]
    return result


def _ridges(heights: Pixels) -> Pixels:
    """High where the plasma crosses its middle: thin lines instead of clouds."""
    centred = heights - np.median(heights)
    result: Pixels = 1.0 - np.abs(centred) / np.abs(centred).max()
    return result
