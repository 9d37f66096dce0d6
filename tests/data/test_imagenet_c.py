"""Corruptions of images of any size; `test_cifar10c` compares those of small ones pixel by pixel."""

import numpy as np
import pytest
from scipy import ndimage

from openbench.data.sources import imagenet_c
from openbench.data.sources.imagenet_c import KINDS, PARAMETERS, corrupt, frost_layer, plasma

SIZES = [(8, 8), (33, 47), (96, 64)]


def picture(height, width, channels=3, seed=0):
    """A smooth picture with some detail, uint8."""
    rng = np.random.default_rng(seed)
    rough = rng.random((height, width, channels))
    smooth = ndimage.gaussian_filter(rough, (2, 2, 0)) * 4 - 1.5 + 0.2 * rough
    image = (np.clip(smooth, 0.05, 0.95) * 255).astype(np.uint8)
    return image if channels == 3 else image[..., 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_shape_and_type_stay_and_the_input_is_not_written_to(kind, size):
    for channels in (1, 3):
        image = picture(*size, channels)
        kept = image.copy()
        moved = corrupt(image, kind, 4, np.random.default_rng(0))
        assert (moved.shape, moved.dtype) == (image.shape, np.uint8)
        assert np.array_equal(image, kept)
        assert not np.array_equal(moved, image)


# Elastic transform is left out: its published parameters trade displacement against roughness.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "elastic_transform"])
def test_the_last_severity_moves_an_image_further_than_the_first(kind):
    image = picture(32, 32)
    moved = {
        severity: [corrupt(image, kind, severity, np.random.default_rng(draw)).astype(float) for draw in range(4)]
        for severity in (1, 5)
    }
    first, last = (np.mean([(one - image) ** 2 for one in drawn]) for drawn in moved.values())
    assert last > first


def test_small_images_get_the_parameters_published_for_small_images():
    # The middle grey is far from both ends, so that nothing is clipped and the deviation is the parameter itself.
    for side, row in ((84, 0), (85, 1)):
        moved = corrupt(np.full((side, side, 3), 127, np.uint8), "gaussian_noise", 2, np.random.default_rng(0)) / 255
        assert moved.std() == pytest.approx(PARAMETERS["gaussian_noise"][row][1], rel=0.03)


@pytest.mark.parametrize("radius", [4, 10])  # the filter grows with radii above 8, which small images never have
def test_defocus_spreads_a_point_into_a_disk(radius):
    x = np.zeros((41, 41, 1))
    x[20, 20] = 1.0
    spread = imagenet_c.defocus_blur(x, (radius, 0.01), np.random.default_rng(0))[..., 0]
    inside = np.hypot(*(np.mgrid[:41, :41] - 20)) <= radius
    assert spread[inside] == pytest.approx(1 / inside.sum())
    assert np.abs(spread[~inside]).max() < 1e-12


@pytest.mark.parametrize("side", [5, 32, 100])
def test_a_plasma_spans_the_unit_interval_and_is_smoother_the_faster_its_roughness_falls(side):
    heights = plasma(side, 2.0, np.random.default_rng(0))
    assert heights.shape[0] >= side
    assert (heights.min(), heights.max()) == (0.0, 1.0)
    rough, smooth = (plasma(128, decay, np.random.default_rng(0)) for decay in (1.2, 3.0))
    assert np.abs(np.diff(rough)).mean() > 2 * np.abs(np.diff(smooth)).mean()


def test_frost_has_the_brightness_of_the_photographs_and_differs_from_draw_to_draw():
    first, second = (frost_layer(200, 300, np.random.default_rng(seed)) for seed in (0, 1))
    assert first.shape == (200, 300, 3)
    assert first.mean(axis=(0, 1)) == pytest.approx([0.58, 0.65, 0.70], abs=0.03)
    assert first.std(axis=(0, 1)) == pytest.approx([0.12] * 3, abs=0.03)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.9
