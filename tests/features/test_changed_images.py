"""Images that are corrupted, mixed with those of another split, or made into synthetic OOD, in the network's crop."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from openbench.core.benchmark import RowItems, Split
from openbench.core.preprocess import OwnPreprocess, OwnTransform, Preprocess
from openbench.core.request import Corruption, Mixing, Role
from openbench.data.loading import batches
from openbench.data.sources.imagenet_c import corrupt
from openbench.errors import ConfigError
from openbench.features.changed_images import RECIPES, check_recipes, corrupted, mixed, synthetic

from .feature_toys import toy_split

CROP = Preprocess(resize=4, crop=4, mean=(0.5,) * 3, std=(0.5,) * 3)


def flat(name: str, levels: list[int], shape: tuple[int, ...] = (4, 4, 3)) -> Split:
    """Images of one level each."""
    n = len(levels)
    items = [np.full(shape, level, np.uint8) for level in levels]
    keys = [f"{name}/{i}" for i in range(n)]
    return Split(name, Role.ID_TRAIN, items, np.zeros(n, np.int64), keys, ("a",), digest=name, expected=n)


def levels(split: Split) -> list[int]:
    images = [split.items[i] for i in range(len(split))]
    assert all(len(np.unique(image)) == 1 for image in images)
    return [int(image.flat[0]) for image in images]


def test_a_copy_is_a_share_of_the_image_and_the_rest_of_one_of_the_others():
    own, others = flat("own", [0] * 400), flat("others", [100, 200])
    found = levels(mixed(own, others, Mixing((0.25, 0.75)), CROP))
    # 100 and 200, of which 75 % or 25 % are there.
    assert sorted(set(found)) == [25, 50, 75, 150]
    assert all(60 < found.count(level) < 140 for level in set(found))


def test_draws_follow_the_key_and_the_seed():
    own, others = flat("own", list(range(50))), flat("others", [255, 128, 64, 0])
    first = mixed(own, others, Mixing(), CROP)
    assert levels(first) == levels(mixed(own, others, Mixing(), CROP))
    other = mixed(own, others, Mixing(seed=1), CROP)
    assert levels(first) != levels(other)
    digests = {first.digest, other.digest, own.digest}
    digests |= {mixed(flat("more", [1]), others, Mixing(), CROP).digest, mixed(own, own, Mixing(), CROP).digest}
    assert len(digests) == 5


@pytest.mark.parametrize(("own", "others"), [((4, 4), (6, 6, 3)), ((6, 6, 3), (4, 4)), ((4, 4), (6, 6))])
def test_grey_and_coloured_images_of_any_size_are_mixed_in_the_crop(own: tuple[int, ...], others: tuple[int, ...]):
    found = mixed(flat("own", [10], own), flat("others", [210], others), Mixing((0.5,)), CROP)
    assert found.items[0].shape == ((4, 4) if len(own) == len(others) == 2 else (4, 4, 3))
    assert levels(found) == [110]


def centre(picture):
    """A transform of somebody's own: the inner half of an image, in steps of every second pixel."""
    pixels = np.asarray(picture, np.float32)[4:12:2, 4:12:2]
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


@pytest.mark.parametrize(
    "preprocess",
    [Preprocess(6, 4), OwnPreprocess(4, 4, own=OwnTransform("centre", "1", "RGB", centre))],
    ids=["resize and crop", "a function"],
)
def test_what_is_left_of_an_image_is_where_the_network_sees_it(preprocess):
    noise = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
    own, others = flat("own", [0, 0, 0], (16, 16, 3)), flat("others", [0, 255], (10, 14))
    own = replace(own, items=list(noise))
    (clean,) = batches(own, preprocess, 3)
    (nearly,) = batches(mixed(own, others, Mixing((1 - 1e-9,)), preprocess), preprocess, 3)
    assert torch.equal(nearly, clean)


@pytest.mark.parametrize(("as_stored", "side"), [(False, 9), (True, 5)])
def test_a_copy_is_resized_as_its_clean_image_is(as_stored: bool, side: int) -> None:
    split = replace(toy_split(3), as_stored=as_stored)
    copies = corrupted(split, Corruption("brightness", 2), Preprocess(resize=9, crop=5))
    resized = np.asarray(Image.fromarray(split.items[1]).resize((side, side), Image.Resampling.BILINEAR))
    edge = (side - 5) // 2
    crop = resized[edge : edge + 5, edge : edge + 5]
    expected = corrupt(crop, "brightness", 2, np.random.default_rng(0))  # draws nothing
    np.testing.assert_array_equal(copies.items[1], expected)
    assert copies.as_stored


LARGER = Preprocess(resize=8, crop=8, mean=(0.5,) * 3, std=(0.5,) * 3)
N = 30


def images(shape=(8, 8, 3)):
    pixels = np.random.default_rng(0).integers(0, 256, (N, *shape), dtype=np.uint8)
    labels = np.arange(N) % 3
    return Split("a", Role.ID_VAL, list(pixels), labels, [f"k{i}" for i in range(N)], tuple("abc"), "a", N)


def made(split, *recipes, seed=0):
    found = synthetic(split, recipes or RECIPES, seed, LARGER)
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
