"""OOD images made of ID images: what each recipe does."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.core.benchmark import RowItems, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.errors import ConfigError
from openbench.features.changed_images import RECIPES, check_recipes, synthetic

CROP = Preprocess(resize=8, crop=8, mean=(0.5,) * 3, std=(0.5,) * 3)
N = 30


def images(shape=(8, 8, 3)):
    pixels = np.random.default_rng(0).integers(0, 256, (N, *shape), dtype=np.uint8)
    labels = np.arange(N) % 3
    return Split("a", Role.ID_VAL, list(pixels), labels, [f"k{i}" for i in range(N)], tuple("abc"), "a", N)


def made(split, *recipes, seed=0):
    found = synthetic(split, recipes or RECIPES, seed, CROP)
    return found, np.stack([found.items[i] for i in range(len(found))])


def test_a_mixture_is_the_mean_of_an_image_and_one_of_another_class():
    split = images()
    _, found = made(split, "mixture")
    own, partners = np.stack(split.items).astype(float), []
    for at, mixture in enumerate(found):
        means = np.rint((own[at] + own) / 2)
        (partner,) = np.flatnonzero((means == mixture).all((1, 2, 3)))
        partners.append(partner)
    assert not (split.labels[partners] == split.labels).any()
    assert len(set(partners)) > N / 3


@pytest.mark.parametrize("shape", [(8, 8, 3), (8, 8)])
def test_patches_are_those_of_the_image_in_another_order(shape):
    split = images(shape)
    _, found = made(split, "patches")

    def patches(image):
        return [image[y : y + 2, x : x + 2].tobytes() for y in range(0, 8, 2) for x in range(0, 8, 2)]

    orders = set()
    for image, permuted in zip(split.items, found, strict=True):
        assert sorted(patches(permuted)) == sorted(patches(image))
        orders.add(tuple(patches(image).index(patch) for patch in patches(permuted)))
    assert len(orders) == N
    assert tuple(range(16)) not in orders


def test_noise_is_uniform_and_has_nothing_of_the_image():
    split = images()
    _, found = made(split, "noise")
    dark = replace(split, items=[image * 0 for image in split.items])
    np.testing.assert_array_equal(made(dark, "noise")[1], found)
    counts = np.bincount(found.ravel() // 32, minlength=8)
    expected = found.size / 8
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # χ² of 7 degrees, .999


def test_every_recipe_is_applied_to_every_image_by_draws_of_key_and_seed():
    split, (whole, pixels) = images(), made(images())
    assert (len(whole), whole.role, set(whole.labels)) == (3 * N, Role.OOD_VAL, {-1})
    np.testing.assert_array_equal(pixels[N : 2 * N], made(split, "patches")[1])
    other, others = made(split, seed=1)
    assert (pixels != others).any((1, 2, 3)).mean() > 0.9  # a partner may be drawn twice
    assert len({split.digest, whole.digest, other.digest, made(split, "noise")[0].digest}) == 4


def test_of_rows_of_numbers_only_mixtures_are_made():
    rows = np.random.default_rng(1).normal(size=(N, 5)).astype(np.float32)
    split = replace(images(), items=RowItems((rows,)))
    with pytest.raises(ConfigError, match=r"for rows of numbers — allowed: tune.recipes=\[mixture\]"):
        check_recipes(split, RECIPES)
    check_recipes(split, ["mixture"])
    found, mixtures = made(split, "mixture")
    assert isinstance(found.items, RowItems)
    pairs = (rows[:, None] + rows) / 2
    for at, mixture in enumerate(mixtures):
        (partner,) = np.flatnonzero((pairs[at] == mixture).all(1))
        assert split.labels[partner] != split.labels[at]
