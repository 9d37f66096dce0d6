"""The 15 common corruptions of ImageNet-C at five severities, for images of any size; parameters as published.

Each function takes an image (h, w, c), c = 1 or 3, float64 in [0, 1], and returns one of the same shape, not yet
clipped. Where severities are given twice, the first row is for small images (published for 32×32, CIFAR-10-C), the
second for large ones (published for 224×224, ImageNet-C).

Reference:
    Hendrycks & Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019,
    arXiv 1903.12261. Differences from the official code: random numbers come from a generator that is passed; frost is
    drawn instead of cut from six photographs, whose licences are unclear; motion blur samples at whole pixels instead
    of calling ImageMagick; images need not be square, and grey ones stay grey.
"""

import io
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from scipy import ndimage

from openbench.core.benchmark import Image

Pixels = NDArray[np.float64]
Rng = np.random.Generator
# Half way, on a logarithmic scale, between the two sizes for which parameters are published.
_SMALL = math.sqrt(32 * 224)

NOISE = {
    "gaussian_noise": ((0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)),
    "shot_noise": ((500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
    "impulse_noise": ((0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)),
}
BLUR = {
    # Radius, and σ of the smoothing of the disk's edge.
    "defocus_blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # σ, furthest step, repetitions.
    "glass_blur": (
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # Radius, σ along the motion.
    "motion_blur": (((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)), ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
    # Last zoom factor (the first is 1); step.
    "zoom_blur": (
        ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    ),
}
WEATHER = {
    # Mean, σ, zoom and threshold of the flakes, radius and σ of their motion, share of the image.
    "snow": (
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # Weight of the image, weight of the frost.
    "frost": (
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    # Thickness; the factor by which the plasma's roughness falls from scale to scale.
    "fog": (
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": ((0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)),
}
_E = 244 / 224  # the official code multiplies by 244 where the images have 224
_ELASTIC = ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
DIGITAL = {
    "contrast": ((0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    # Displacement, its smoothness, and how far the corners of the affine map move, all per side length.
    "elastic_transform": (
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        tuple((a * _E, b * _E, c * _E) for a, b, c in _ELASTIC),
    ),
    "pixelate": ((0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)),
    "jpeg_compression": ((80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}
FAMILIES = {"noise": tuple(NOISE), "blur": tuple(BLUR), "weather": tuple(WEATHER), "digital": tuple(DIGITAL)}
PARAMETERS = {**NOISE, **BLUR, **WEATHER, **DIGITAL}
KINDS = tuple(PARAMETERS)
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image: Image, kind: str, severity: int, rng: Rng) -> Image:
    """Return the corrupted image, same shape, uint8.

    Args:
        image: (h, w) or (h, w, 3) uint8.
        kind: one of `KINDS`.
        severity: 1 to 5.
        rng: the only source of randomness.
    """
    small = min(image.shape[:2]) < _SMALL
    amount = PARAMETERS[kind][0 if small else 1][severity - 1]
    pixels = np.atleast_3d(image).astype(np.float64) / 255.0
    moved = np.clip(_FUNCTIONS[kind](pixels, amount, rng), 0.0, 1.0) * 255.0
    # As the official code does, fractions of a grey level are cut off; 1e-9 keeps what rounding put just below one.
    return np.floor(moved + 1e-9).astype(np.uint8).reshape(image.shape)


def gaussian_noise(x: Pixels, sigma: float, rng: Rng) -> Pixels:
    """Add N(0, σ²) to each channel of each pixel."""
    return x + rng.normal(0.0, sigma, x.shape)


def shot_noise(x: Pixels, photons: float, rng: Rng) -> Pixels:
    """Poisson(x·photons)/photons: few photons, much noise."""
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Pixels, share: float, rng: Rng) -> Pixels:
    """A share of all values becomes 0 or 1, either with probability 1/2."""
    hit = rng.random(x.shape) <= share
    return np.where(hit, np.where(rng.random(x.shape) <= 0.5, 1.0, 0.0), x)


def defocus_blur(x: Pixels, amount: tuple[float, float], rng: Rng) -> Pixels:
    """Correlation with a disk whose edge is smoothed."""
    radius, smooth = amount
    reach, size = (8, 3) if radius <= 8 else (math.ceil(radius), 5)
    across = np.arange(-reach, reach + 1)
    disk = (across[:, None] ** 2 + across[None, :] ** 2 <= radius**2).astype(np.float64)
    line = np.exp(-((np.arange(size) - size // 2) ** 2) / (2 * smooth**2))
    edge = np.outer(line, line) / line.sum() ** 2
    kernel = ndimage.correlate(disk / disk.sum(), edge, mode="mirror")
    return ndimage.correlate(x, kernel[..., None], mode="mirror")


def glass_blur(x: Pixels, amount: tuple[float, int, int], rng: Rng) -> Pixels:
    """Blur, let each pixel take a near one's place in scan order, blur again.

    The official code means to swap two pixels; since it swaps views of one array, it copies one. So does this code.
    """
    sigma, step, rounds = amount
    height, width = x.shape[:2]
    blurred = np.floor(_smooth(x, sigma) * 255.0 + 1e-9) / 255.0
    taken = list(range(height * width))
    rows, columns = range(height - step, step, -1), range(width - step, step, -1)
    for _ in range(rounds):
        moves = rng.integers(-step, step, (len(rows) * len(columns), 2))
        offsets = (moves[:, 0] + moves[:, 1] * width).tolist()
        places = [row * width + column for row in rows for column in columns]
        for place, offset in zip(places, offsets, strict=True):
            taken[place] = taken[place + offset]
    return _smooth(blurred.reshape(height * width, -1)[taken].reshape(x.shape), sigma)


def motion_blur(x: Pixels, amount: tuple[int, float], rng: Rng) -> Pixels:
    """One-sided Gaussian along a line at a random angle of −45° to 45°."""
    kernel = motion_kernel(*amount, angle=float(rng.uniform(-45.0, 45.0)))
    return ndimage.correlate(x, kernel[..., None], mode="nearest")


def zoom_blur(x: Pixels, amount: tuple[float, float], rng: Rng) -> Pixels:
    """Mean of the image and of its centre magnified by each factor."""
    end, step = amount
    factors = np.arange(1, end, step)
    return (x + sum(zoomed(x, float(factor)) for factor in factors)) / (len(factors) + 1)


def snow(x: Pixels, amount: tuple[float, float, float, float, int, float, float], rng: Rng) -> Pixels:
    """A whitened image, plus flakes blown along a line, plus the same flakes turned by half a turn."""
    mean, sigma, zoom, threshold, radius, length, share = amount
    flakes = zoomed(rng.normal(mean, sigma, (*x.shape[:2], 1)), zoom)[..., 0]
    flakes = np.clip(np.where(flakes < threshold, 0.0, flakes), 0.0, 1.0)
    kernel = motion_kernel(radius, length, angle=float(rng.uniform(-135.0, -45.0)))
    blown = np.rint(ndimage.correlate(flakes, kernel, mode="nearest") * 255.0)[..., None] / 255.0
    white = share * x + (1 - share) * np.maximum(x, _grey(x) * 1.5 + 0.5)
    return white + blown + np.rot90(blown, k=2)


def frost(x: Pixels, amount: tuple[float, float], rng: Rng) -> Pixels:
    """A weighted sum of the image and of drawn frost."""
    image, ice = amount
    layer = frost_layer(x.shape[0], x.shape[1], rng)
    return image * x + ice * (layer if x.shape[2] == 3 else _grey(layer))


def fog(x: Pixels, amount: tuple[float, float], rng: Rng) -> Pixels:
    """The image under a plasma, scaled back to the image's maximum."""
    thickness, decay = amount
    top = float(x.max())
    cloud = plasma(max(x.shape[:2]), decay, rng)[: x.shape[0], : x.shape[1], None]
    return (x + thickness * cloud) * top / (top + thickness)


def brightness(x: Pixels, amount: float, rng: Rng) -> Pixels:
    """The value of HSV raised by `amount`; hue and saturation stay, so all channels grow by one factor."""
    value = x.max(axis=2, keepdims=True)
    raised = np.clip(value + amount, 0.0, 1.0)
    return np.where(value > 0, x * raised / np.where(value > 0, value, 1.0), raised)


def contrast(x: Pixels, amount: float, rng: Rng) -> Pixels:
    """Each channel pulled towards its mean."""
    mean = x.mean(axis=(0, 1), keepdims=True)
    return mean + amount * (x - mean)


def elastic_transform(x: Pixels, amount: tuple[float, float, float], rng: Rng) -> Pixels:
    """A random affine map, then a smooth random displacement."""
    side = min(x.shape[:2])
    far, smooth, corners = (value * side for value in amount)
    height, width = x.shape[:2]
    warped = _affine(x, corners, rng)
    moves = [
        far * ndimage.gaussian_filter(rng.uniform(-1.0, 1.0, (height, width)), smooth, mode="reflect", truncate=3)
        for _ in range(2)
    ]
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    return _sampled(warped, rows + moves[1], columns + moves[0], "reflect")


def pixelate(x: Pixels, share: float, rng: Rng) -> Pixels:
    """Reduced to a share of its size, then enlarged, both by box averages."""
    height, width = x.shape[:2]
    picture = _picture(x).resize((max(1, int(width * share)), max(1, int(height * share))), Pillow.Resampling.BOX)
    return _pixels(picture.resize((width, height), Pillow.Resampling.BOX))


def jpeg_compression(x: Pixels, quality: int, rng: Rng) -> Pixels:
    """Saved as JPEG and read again."""
    stream = io.BytesIO()
    _picture(x).save(stream, "JPEG", quality=int(quality))
    with Pillow.open(stream) as picture:
        return _pixels(picture)


def _affine(x: Pixels, reach: float, rng: Rng) -> Pixels:
    """The map that moves three corners of a central square by up to `reach` pixels along each axis."""
    centre = np.array([x.shape[1] // 2, x.shape[0] // 2], dtype=np.float64)
    half = min(x.shape[:2]) // 3
    before = centre + half * np.array([(1, 1), (1, -1), (-1, -1)])
    after = before + rng.uniform(-reach, reach, before.shape) if reach else before
    # Where each pixel of the result comes from: the map from `after` to `before`, in (column, row).
    back = np.linalg.solve(np.column_stack([after, np.ones(3)]), before)
    rows, columns = np.mgrid[: x.shape[0], : x.shape[1]].astype(np.float64)
    source = np.stack([columns, rows, np.ones_like(rows)], axis=-1) @ back
    return _sampled(x, source[..., 1], source[..., 0], "mirror")


def _sampled(x: Pixels, rows: Pixels, columns: Pixels, mode: str) -> Pixels:
    planes = [ndimage.map_coordinates(x[..., c], (rows, columns), order=1, mode=mode) for c in range(x.shape[2])]
    return np.stack(planes, axis=-1)


def _smooth(x: Pixels, sigma: float) -> Pixels:
    return ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")


def _grey(x: Pixels) -> Pixels:
    """Rec. 601 luma with one channel."""
    return x if x.shape[2] == 1 else (x @ np.array([0.299, 0.587, 0.114]))[..., None]


def _picture(x: Pixels) -> Pillow.Image:
    values = np.rint(x * 255.0).astype(np.uint8)
    return Pillow.fromarray(values[..., 0] if x.shape[2] == 1 else values)


def _pixels(picture: Pillow.Image) -> Pixels:
    return np.atleast_3d(np.asarray(picture)).astype(np.float64) / 255.0


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
    return heights / heights.max()


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
    return np.clip(np.array([0.58, 0.65, 0.70]) + level[..., None], 0.0, 1.0)


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
    return large[top : top + height, left : left + width]


def _ridges(heights: Pixels) -> Pixels:
    """High where the plasma crosses its middle: thin lines instead of clouds."""
    centred = heights - np.median(heights)
    return 1.0 - np.abs(centred) / np.abs(centred).max()


_FUNCTIONS: dict[str, Callable[..., Pixels]] = {kind: globals()[kind] for kind in KINDS}  # named alike
