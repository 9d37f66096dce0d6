"""Images mixed with those of another split: which, how much, and from whose crop."""

import numpy as np
import pytest

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Mixing, Role
from openbench.features.mixed import mixed

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
