import numpy as np
import pytest
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from scipy import ndimage, stats

from openbench.data.sources import imagenet_c
from openbench.data.sources.imagenet_c import (
    KINDS,
    PARAMETERS,
    corrupt,
    frost_layer,
    motion_kernel,
    plasma,
    zoomed,
)

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


def test_shot_noise_has_the_variance_of_photon_counts():
    x = np.full((100, 100, 3), 0.4)
    moved = imagenet_c.shot_noise(x, 60, np.random.default_rng(0))
    assert moved.mean() == pytest.approx(0.4, abs=0.002)
    assert moved.var() == pytest.approx(0.4 / 60, rel=0.05)


def test_impulse_noise_hits_the_stated_share_half_of_it_black():
    moved = imagenet_c.impulse_noise(np.full((200, 200, 3), 0.5), 0.27, np.random.default_rng(0))
    assert (moved != 0.5).mean() == pytest.approx(0.27, abs=0.005)
    assert (moved == 0).sum() / (moved != 0.5).sum() == pytest.approx(0.5, abs=0.01)


def test_brightness_raises_the_value_of_hsv():
    x = picture(30, 30) / 255.0
    hsv = rgb_to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + 0.3, 0, 1)
    assert imagenet_c.brightness(x, 0.3, np.random.default_rng(0)) == pytest.approx(hsv_to_rgb(hsv), abs=1e-12)


def test_contrast_scales_the_deviation_and_keeps_the_mean_of_each_channel():
    x = picture(30, 30) / 255.0
    moved = imagenet_c.contrast(x, 0.2, np.random.default_rng(0))
    assert moved.mean(axis=(0, 1)) == pytest.approx(x.mean(axis=(0, 1)))
    assert moved.std(axis=(0, 1)) == pytest.approx(0.2 * x.std(axis=(0, 1)))


def test_defocus_spreads_a_point_into_a_disk():
    x = np.zeros((41, 41, 1))
    x[20, 20] = 1.0
    spread = imagenet_c.defocus_blur(x, (4, 0.01), np.random.default_rng(0))[..., 0]
    inside = np.hypot(*(np.mgrid[:41, :41] - 20)) <= 4
    assert spread[inside] == pytest.approx(1 / inside.sum())
    assert np.abs(spread[~inside]).max() < 1e-12


def test_motion_spreads_a_point_to_one_side_with_falling_weights():
    x = np.zeros((61, 61))
    x[30, 30] = 1.0
    spread = ndimage.correlate(x, motion_kernel(5, 3.0, 0.0), mode="nearest")
    weights = stats.norm.pdf(np.arange(11), scale=3.0)
    # The light that falls on a pixel comes from pixels to its right: the point smears to the left.
    assert spread[30, 30::-1][:11] == pytest.approx(weights / weights.sum())
    assert spread[30, 31:].max() == 0.0
    assert np.delete(spread, 30, axis=0).max() == 0.0


@pytest.mark.parametrize("angle", [-135.0, -90.0, -45.0, 0.0, 30.0, 45.0])
def test_a_motion_kernel_lies_within_half_a_pixel_of_its_line(angle):
    kernel = motion_kernel(10, 4.0, angle)
    assert kernel.sum() == pytest.approx(1.0)
    down, right = np.argwhere(kernel > 0).T - 20
    off = down * np.cos(np.deg2rad(angle)) - right * np.sin(np.deg2rad(angle))
    assert np.abs(off).max() <= np.sqrt(0.5) + 1e-9


def test_zooming_magnifies_about_the_centre():
    y, x = np.mgrid[:101, :101].astype(float) - 50
    ramp = np.stack([x, y], axis=-1)
    # scipy's zoom maps the first sample of the cut to the first of the result, and the last to the last.
    inner = np.ceil(101 / 1.25)
    large = int(np.round(inner * 1.25))
    scale = (inner - 1) / (large - 1)
    middle = zoomed(ramp, 1.25)[20:81, 20:81]
    assert np.diff(middle[..., 0], axis=1) == pytest.approx(np.full((61, 60), scale), abs=1e-9)
    assert np.abs(middle[30, 30]).max() < 1.0


def test_glass_takes_every_pixel_from_within_reach():
    height = width = 40
    y, x = np.mgrid[:height, :width].astype(float)
    moved = imagenet_c.glass_blur(np.stack([y, x], axis=-1) / 255.0, (0.01, 3, 1), np.random.default_rng(0)) * 255.0
    distance = np.abs(moved - np.stack([y, x], axis=-1))
    # One step goes up to 3 pixels; a pixel taken may itself have been replaced earlier in the scan.
    assert np.median(distance) <= 3
    assert 0.5 < (distance.max(axis=2) > 0).mean() < 1.0
    assert np.all(distance[:3] == 0)


def test_an_elastic_map_without_displacement_keeps_lines_straight():
    y, x = np.mgrid[:60, :60].astype(float)
    ramp = (0.2 + 0.005 * x + 0.003 * y)[..., None]
    moved = imagenet_c.elastic_transform(ramp, (0.0, 0.0, 0.05), np.random.default_rng(0))[10:50, 10:50, 0]
    design = np.column_stack([np.ones(1600), y[10:50, 10:50].ravel(), x[10:50, 10:50].ravel()])
    _, residual, *_ = np.linalg.lstsq(design, moved.ravel(), rcond=None)
    assert residual[0] < 1e-20
    assert np.abs(moved - ramp[10:50, 10:50, 0]).max() > 1e-3


def test_pixelating_by_half_averages_blocks_of_four():
    image = picture(20, 20)
    blocks = image.reshape(10, 2, 10, 2, 3).mean(axis=(1, 3))
    moved = imagenet_c.pixelate(image / 255.0, 0.5, np.random.default_rng(0)) * 255
    assert moved[::2, ::2] == pytest.approx(blocks, abs=1.01)  # rounded after each axis
    assert np.array_equal(moved[::2, ::2], moved[1::2, 1::2])


def test_fog_keeps_the_brightest_value_within_range_and_veils_the_rest():
    x = picture(48, 64) / 255.0
    veiled = imagenet_c.fog(x, (2.0, 2.0), np.random.default_rng(0))
    assert veiled.max() <= x.max() + 1e-12
    assert veiled.std() < x.std() + 0.3
    # Fog is white: it adds the same to all channels before scaling.
    scale = x.max() / (x.max() + 2.0)
    added = veiled / scale - x
    assert added[..., 0] == pytest.approx(added[..., 1])


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
