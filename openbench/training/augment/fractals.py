"""Fractal pictures from random iterated function systems: a mixing set that needs no download."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_POINTS, _STEPS, _SETTLING = 1000, 60, 20


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


def fractal(side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
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
def fractals(count: int, side: int, seed: int) -> NDArray[np.uint8]:
    """Return pictures (count, side, side, 3) uint8; the same for the same arguments, whatever else was drawn.

    Reference:
        Hutchinson: Fractals and self similarity, Indiana Univ. Math. J. 30, 1981 (attractors); Barnsley, Demko:
        Iterated function systems and the global construction of fractals, Proc. R. Soc. A 399, 1985 (random walks).
    """
    return np.stack([fractal(side, np.random.default_rng([seed, number])) for number in range(count)])
