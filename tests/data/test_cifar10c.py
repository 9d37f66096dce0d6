"""CIFAR-10-C's 15 corruptions at five severities, pixel for pixel as an implementation that shares no code draws them.

The parameters are those of make_cifar_c.py (github.com/hendrycks/robustness). Both sides get the same random numbers.
"""

import io
import math

import numpy as np
import pytest
import torch
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image
from scipy import ndimage
from torch.nn import functional

from openbench.data.sources.imagenet_c import KINDS, corrupt, frost_layer

SIDE = 32
PUBLISHED = {
    "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.10],
    "shot_noise": [500, 250, 100, 75, 50],
    "impulse_noise": [0.01, 0.02, 0.03, 0.05, 0.07],
    "defocus_blur": [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)],
    "glass_blur": [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)],
    "motion_blur": [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    "zoom_blur": [1.06, 1.11, 1.16, 1.21, 1.26],
    "snow": [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    "frost": [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    "fog": [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
    "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
    "elastic_transform": [(0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)],
    "pixelate": [0.95, 0.9, 0.85, 0.75, 0.65],
    "jpeg_compression": [80, 65, 58, 50, 40],
}


def smoothing(sigma, truncate, fold):
    """The Gaussian filter along one axis as a matrix; `fold` says which pixel stands for one beyond the border."""
    reach = int(truncate * sigma + 0.5)
    weights = [math.exp(-(d**2) / (2 * sigma**2)) for d in range(-reach, reach + 1)] if reach else [1.0]
    matrix = np.zeros((SIDE, SIDE))
    for row in range(SIDE):
        for d, weight in zip(range(-reach, reach + 1), weights, strict=True):
            matrix[row, fold(row + d)] += weight / sum(weights)
    return matrix


def nearest(at):
    return min(max(at, 0), SIDE - 1)


def symmetric(at):
    at %= 2 * SIDE
    return at if at < SIDE else 2 * SIDE - 1 - at


def mirror(at):
    at %= 2 * (SIDE - 1)
    return at if at < SIDE else 2 * (SIDE - 1) - at


def smoothed(x, sigma):
    matrix = smoothing(sigma, 4, nearest)
    return np.einsum("ij,jkc,lk->ilc", matrix, x, matrix)


def moved_along(x, radius, sigma, angle):
    """Copies shifted along a line by whole pixels, with falling weights."""
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    total = np.zeros_like(x)
    for i, weight in enumerate(weights):
        down, right = (math.ceil(i * f(math.radians(angle)) - 0.5) for f in (math.sin, math.cos))
        rows, columns = ([nearest(at + by) for at in range(SIDE)] for by in (down, right))
        total += weight / sum(weights) * x[rows][:, columns]
    return total


def magnified(x, factor):
    inner = math.ceil(SIDE / factor)
    at, size = (SIDE - inner) // 2, round(inner * factor)
    cut = torch.from_numpy(x[at : at + inner, at : at + inner]).permute(2, 0, 1)[None]
    large = functional.interpolate(cut, (size, size), mode="bilinear", align_corners=True)[0].permute(1, 2, 0).numpy()
    at = (size - SIDE) // 2
    return large[at : at + SIDE, at : at + SIDE]


def sampled(x, row, column, fold):
    """Bilinear interpolation at one place."""
    top, left = math.floor(row), math.floor(column)
    down, right = row - top, column - left
    corners = [[x[fold(top + a), fold(left + b)] for b in (0, 1)] for a in (0, 1)]
    upper, lower = ((1 - right) * pair[0] + right * pair[1] for pair in corners)
    return (1 - down) * upper + down * lower


def cloud(decay, rng):
    """Diamond-square on a torus, point by point."""
    height, step, spread = np.zeros((SIDE, SIDE)), SIDE, 100.0
    while step >= 2:
        half, cells = step // 2, SIDE // step
        for row, column, near in (
            (half, half, [(-half, -half), (-half, half), (half, -half), (half, half)]),
            (0, half, [(-half, 0), (half, 0), (0, -half), (0, half)]),
            (half, 0, [(-half, 0), (half, 0), (0, -half), (0, half)]),
        ):
            drawn = rng.uniform(-(spread**2), spread**2, (cells, cells))
            for a in range(cells):
                for b in range(cells):
                    i, j = row + a * step, column + b * step
                    height[i, j] = sum(height[(i + u) % SIDE, (j + v) % SIDE] for u, v in near) / 4 + drawn[a, b]
        step, spread = half, spread / decay
    return (height - height.min()) / (height.max() - height.min())


def impulse_noise(x, share, rng):
    hit, white = rng.random(x.shape) <= share, rng.random(x.shape) <= 0.5
    return np.select([hit & white, hit], [1.0, 0.0], x)


def defocus_blur(x, c, rng):
    radius, sigma = c
    inside = [[float(i**2 + j**2 <= radius**2) for j in range(-8, 9)] for i in range(-8, 9)]
    line = torch.tensor([math.exp(-(d**2) / (2 * sigma**2)) for d in (-1, 0, 1)], dtype=torch.float64)
    disk, edge = torch.tensor(inside, dtype=torch.float64), torch.outer(line, line)
    kernel = functional.conv2d((disk / disk.sum())[None, None], (edge / edge.sum())[None, None], padding=1)
    planes = functional.pad(torch.from_numpy(x).permute(2, 0, 1)[:, None], (8, 8, 8, 8), mode="reflect")
    return functional.conv2d(planes, kernel)[:, 0].permute(1, 2, 0).numpy()


def glass_blur(x, c, rng):
    sigma, reach, rounds = c
    y = np.floor(smoothed(x, sigma) * 255 + 1e-9)
    for _ in range(rounds):
        for row in range(SIDE - reach, reach, -1):
            for column in range(SIDE - reach, reach, -1):
                right, down = rng.integers(-reach, reach, 2)
                y[row, column] = y[row + down, column + right]
    return smoothed(y / 255, sigma)


def snow(x, c, rng):
    mean, sigma, zoom, threshold, radius, length, share = c
    flakes = magnified(rng.normal(mean, sigma, (SIDE, SIDE, 1)), zoom)
    flakes = np.clip(flakes * (flakes >= threshold), 0, 1)
    flakes = np.round(255 * moved_along(flakes, radius, length, rng.uniform(-135.0, -45.0))) / 255  # a grey picture
    grey = (0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2])[..., None]
    return share * x + (1 - share) * np.maximum(x, 1.5 * grey + 0.5) + flakes + flakes[::-1, ::-1]


def elastic_transform(x, c, rng):
    far, sigma, reach = (value * SIDE for value in c)
    before = np.array([(26.0, 26.0), (26.0, 6.0), (6.0, 6.0)])  # 10 pixels around the centre, column and row
    after = before + rng.uniform(-reach, reach, (3, 2))
    back = np.linalg.inv(np.vstack([after.T, np.ones(3)])).T @ before
    places = [[(column, row, 1) @ back for column in range(SIDE)] for row in range(SIDE)]
    turned = np.array([[sampled(x, row, column, mirror) for column, row in line] for line in places])
    matrix = smoothing(sigma, 3, symmetric)
    right, down = (far * matrix @ rng.uniform(-1.0, 1.0, (SIDE, SIDE)) @ matrix.T for _ in range(2))
    return np.array(
        [[sampled(turned, i + down[i, j], j + right[i, j], symmetric) for j in range(SIDE)] for i in range(SIDE)]
    )


def brightness(x, c, rng):
    hsv = rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)
    return hsv_to_rgb(hsv)


def stored(x, quality):
    stream = io.BytesIO()
    Image.fromarray((x * 255).round().astype(np.uint8)).save(stream, "JPEG", quality=quality)
    return np.asarray(Image.open(stream)) / 255


def pixelate(x, c, rng):
    small = Image.fromarray((x * 255).round().astype(np.uint8)).resize((int(SIDE * c),) * 2, Image.Resampling.BOX)
    return np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BOX)) / 255


def zoom_blur(x, end, rng):
    factors = np.arange(1, end, 0.01)
    return (x + sum(magnified(x, factor) for factor in factors)) / (len(factors) + 1)


EXPECTED = {
    "gaussian_noise": lambda x, c, rng: x + c * rng.standard_normal(x.shape),
    "shot_noise": lambda x, c, rng: rng.poisson(c * x) / c,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": lambda x, c, rng: moved_along(x, *c, rng.uniform(-45.0, 45.0)),
    "zoom_blur": zoom_blur,
    "snow": snow,
    # The frost is drawn; that it is added with the published weights is what this shows.
    "frost": lambda x, c, rng: c[0] * x + c[1] * frost_layer(SIDE, SIDE, rng),
    "fog": lambda x, c, rng: (x + c[0] * cloud(c[1], rng)[..., None]) / (1 + c[0] / x.max()),
    "brightness": brightness,
    "contrast": lambda x, c, rng: c * x + (1 - c) * x.mean(axis=(0, 1)),
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": lambda x, c, rng: stored(x, c),
}


@pytest.fixture(scope="module")
def image():
    rough = np.random.default_rng(0).random((SIDE, SIDE, 3))
    smooth = ndimage.gaussian_filter(rough, (2, 2, 0)) * 4 - 1.5
    return (np.clip(smooth / 2 + rough / 2, 0.05, 0.95) * 255).astype(np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_image_is_corrupted_as_cifar10c_is(kind, image):
    for severity, parameters in enumerate(PUBLISHED[kind], 1):
        expected = EXPECTED[kind](image / 255, parameters, np.random.default_rng(severity))
        expected = np.floor(np.clip(expected, 0, 1) * 255 + 1e-9)
        off = np.abs(corrupt(image, kind, severity, np.random.default_rng(severity)) - expected)
        assert (off.max(), off.mean()) <= (1, 0.01), severity  # where rounding crosses a grey level
