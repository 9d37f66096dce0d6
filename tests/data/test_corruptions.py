"""Corruptions: plain ones, and those of ImageNet-C, which test_cifar10c compares pixel by pixel on small images."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from openbench.core.request import Role
from openbench.data.build import build_benchmark
from openbench.data.dataset import BenchmarkSet, SetConfig, locate, split_of
from openbench.data.manifests import load_classes
from openbench.data.sources.base import ImageFolder
from openbench.data.sources.corruptions import CommonCorruptions, Corrupted, corrupted
from openbench.data.sources.embedded import SklearnDigits
from openbench.data.sources.imagenet_c import KINDS, PARAMETERS, corrupt, frost_layer

from .conftest import noisy, write_image

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


@pytest.fixture
def source():
    return CommonCorruptions({"installed": SklearnDigits()})


def test_another_seed_and_another_key_draw_otherwise_after_the_geometry(source):
    flat = np.full((16, 16, 3), 100, np.uint8)
    noise = replace(source, kind="gaussian_noise", severity=3)
    assert not np.array_equal(noise.apply(flat, "a"), noise.apply(flat, "b"))
    assert not np.array_equal(noise.apply(flat, "a"), replace(noise, seed=1).apply(flat, "a"))
    sized = replace(source, kind="contrast", severity=1, resize=20, crop=10)
    assert sized.apply(np.full((40, 60, 3), 9, np.uint8), "a").shape == (10, 10, 3)


def test_only_what_the_clean_source_has_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    write_image(tmp_path / "pets" / "a.png", noisy((32, 32, 3)))
    source = CommonCorruptions({"first": ImageFolder(at=("nowhere",)), "second": ImageFolder(at=("pets",))})
    has = [f for place in source.places([tmp_path]) if (f := source.find(place, ["a.png", "b.png"])) is not None]
    assert len(has) == 1
    assert has[0].present.tolist() == [True, False]
    assert len(has[0].items) == 1


def test_a_raised_version_of_what_makes_images_makes_another_set(monkeypatch):
    sources = {"made": CommonCorruptions({"digits": SklearnDigits()})}
    config = SetConfig("digits_c", "digits/test", sources)

    def seen():
        return split_of(locate(BenchmarkSet("csid", Role.CSID, config)), load_classes("digits/classes")).digest

    first = seen()
    monkeypatch.setattr(CommonCorruptions, "version", 2)
    of_corruption = seen()
    monkeypatch.setattr(SklearnDigits, "version", 2)
    assert len({first, of_corruption, seen()}) == 3


def test_any_benchmark_gains_a_csid_set_from_the_command_line(composed):
    node = composed("+benchmark=digits", "+dataset@benchmark.csid.c=id_corrupted")
    benchmark = build_benchmark(node)
    clean, corrupted = benchmark.id_test, benchmark.csid["c"]
    assert corrupted.role == Role.CSID
    assert corrupted.keys == clean.keys
    assert np.array_equal(corrupted.labels, clean.labels)
    assert corrupted.digest != clean.digest
    changed = [not np.array_equal(corrupted.items[i], clean.items[i]) for i in range(len(clean))]
    assert np.mean(changed) > 0.95
    assert not benchmark.pristine


def picture(height, width, channels):
    """A smooth picture with some detail, uint8."""
    rough = np.random.default_rng(0).random((height, width, channels))
    smooth = ndimage.gaussian_filter(rough, (2, 2, 0)) * 4 - 1.5 + 0.2 * rough
    image = (np.clip(smooth, 0.05, 0.95) * 255).astype(np.uint8)
    return image if channels == 3 else image[..., 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(8, 8, 1), (33, 47, 3), (96, 64, 3)], ids=str)
def test_shape_and_type_stay_and_the_input_is_not_written_to(kind, size):
    image = picture(*size)
    kept = image.copy()
    moved = corrupt(image, kind, 4, np.random.default_rng(0))
    assert (moved.shape, moved.dtype) == (image.shape, np.uint8)
    assert np.array_equal(image, kept)
    assert not np.array_equal(moved, image)


def test_small_images_get_the_parameters_published_for_small_images():
    # The middle grey is far from both ends, so that nothing is clipped and the deviation is the parameter itself.
    for side, row in ((84, 0), (85, 1)):
        moved = corrupt(np.full((side, side, 3), 127, np.uint8), "gaussian_noise", 2, np.random.default_rng(0)) / 255
        assert moved.std() == pytest.approx(PARAMETERS["gaussian_noise"][row][1], rel=0.03)


def test_frost_has_the_brightness_of_the_photographs_and_differs_from_draw_to_draw():
    first, second = (frost_layer(200, 300, np.random.default_rng(seed)) for seed in (0, 1))
    assert first.shape == (200, 300, 3)
    assert first.mean(axis=(0, 1)) == pytest.approx([0.58, 0.65, 0.70], abs=0.03)
    assert first.std(axis=(0, 1)) == pytest.approx([0.12] * 3, abs=0.03)
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.9
