"""Images mixed with those of another split: which, how much, and from whose crop."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from openbench.core.benchmark import Split
from openbench.core.preprocess import OwnPreprocess, OwnTransform, Preprocess
from openbench.core.request import Mixing, Role
from openbench.data.loading import batches
from openbench.features.changed_images import mixed

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
