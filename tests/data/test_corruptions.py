import numpy as np

from openbench.data.sources.corruptions import Corrupted, corrupted
from openbench.data.sources.embedded import SklearnDigits

from .conftest import noisy

KEYS = [f"digits/0/{i:04d}" for i in range(12)]


def pixels(source, keys=KEYS):
    found = source.find(source.places([])[0], keys)
    return np.stack([found.items[i] for i in range(len(keys))]).astype(np.int64)


def test_noise_has_the_deviation_asked_for():
    grey = np.full((200, 200), 128, np.uint8)
    moved = corrupted(grey, "gaussian_noise", 0.1, np.random.default_rng(0)).astype(float)
    assert abs(moved.std() / 255 - 0.1) < 0.003
    assert abs(moved.mean() - 128) < 1


def test_contrast_and_brightness_are_the_stated_affine_maps():
    image = np.array([[100, 120], [140, 160]], np.uint8)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(corrupted(image, "contrast", 0.5, rng), [[115, 125], [135, 145]])
    np.testing.assert_array_equal(corrupted(image, "brightness", 0.2, rng), image + 51)
    np.testing.assert_array_equal(corrupted(image, "brightness", 0.4, rng), [[202, 222], [242, 255]])


def test_blur_keeps_colour_channels_apart_and_spreads_a_point_evenly():
    image = np.zeros((15, 15, 3), np.uint8)
    image[7, 7, 1] = 255
    moved = corrupted(image, "gaussian_blur", 1.0, np.random.default_rng(0))
    assert not moved[..., [0, 2]].any()
    # The density of two independent standard normals at the origin.
    assert abs(moved[7, 7, 1] / 255 - 1 / (2 * np.pi)) < 0.01
    np.testing.assert_array_equal(moved, moved.transpose(1, 0, 2))


def test_a_shift_moves_all_pixels_by_whole_steps_and_brings_in_black():
    image = noisy((6, 6)) | 1
    seen = set()
    for seed in range(60):
        moved = corrupted(image, "shift", 1.0, np.random.default_rng(seed))
        padded = np.pad(image, 1)
        steps = [(a, b) for a in range(3) for b in range(3) if (a, b) != (1, 1)]
        fits = [s for s in steps if np.array_equal(padded[s[0] : s[0] + 6, s[1] : s[1] + 6], moved)]
        assert len(fits) == 1
        seen |= set(fits)
    assert len(seen) == 8


def test_each_image_has_its_own_draw_by_the_seed_that_does_not_depend_on_later_ones():
    source = Corrupted(SklearnDigits(), "gaussian_noise", 0.2)
    twice = pixels(source, [KEYS[0]] * 2)
    assert (twice[0] != twice[1]).any()
    np.testing.assert_array_equal(pixels(source, KEYS[:5]), pixels(source)[:5])
    assert (pixels(Corrupted(SklearnDigits(), "gaussian_noise", 0.2, seed=1)) != pixels(source)).any()
