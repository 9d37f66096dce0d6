import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from openbench._compat import library
from openbench.core.preprocess import Preprocess
from openbench.data.loading import apply, stack
from openbench.errors import DataError

from .conftest import noisy

MODES = {"nearest": "NEAREST", "bilinear": "BILINEAR", "bicubic": "BICUBIC"}


def torchvision_applied(image, preprocess):
    """The same chain by torchvision, on a PIL image."""
    transforms = library("torchvision.transforms")
    mode = getattr(transforms.InterpolationMode, MODES[preprocess.interpolation])
    chain = transforms.Compose(
        [
            transforms.Resize(preprocess.resize, mode),
            transforms.CenterCrop(preprocess.crop),
            transforms.ToTensor(),
            transforms.Normalize(preprocess.mean, preprocess.std),
        ]
    )
    return chain(Pillow.fromarray(image).convert("RGB" if preprocess.channels == 3 else "L"))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("shape", "resize", "crop"),
    [
        ((32, 32, 3), 32, 32),  # as stored
        ((64, 64, 3), 32, 32),  # shrunk
        ((28, 28), 32, 32),  # grey, enlarged
        ((97, 61, 3), 64, 56),  # upright, odd margins
        ((61, 98, 3), 64, 57),  # lying
        ((40, 40, 3), (33, 47), 32),  # to an exact size
        ((40, 40, 3), (40, 47), 32),  # one side as it is
        ((20, 30, 3), 20, 26),  # crop larger than the image: padded
        ((21, 35), 21, 24),  # the same, odd, grey
    ],
)
def test_equals_torchvision_bit_by_bit(shape, resize, crop, interpolation):
    image = noisy(shape)
    preprocess = Preprocess(resize, crop, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), interpolation)
    assert torch.equal(apply(image, preprocess), torchvision_applied(image, preprocess))


@pytest.mark.parametrize("shape", [(28, 28), (30, 41, 3)])
def test_one_channel_networks_get_grey_as_torchvision_makes_it(shape):
    image = noisy(shape)
    preprocess = Preprocess(24, 20, (0.13,), (0.31,))
    assert torch.equal(apply(image, preprocess), torchvision_applied(image, preprocess))


def test_grey_and_colour_crops_share_a_batch():
    grey, colour = noisy((4, 4)), noisy((4, 4, 3), 1)
    batch = stack([grey, colour])
    np.testing.assert_array_equal(batch[0], np.dstack([grey] * 3))
    np.testing.assert_array_equal(batch[1], colour)


def test_an_image_with_four_channels_is_refused():
    with pytest.raises(DataError, match=r"shape \(4, 4, 4\)"):
        stack([noisy((4, 4, 4))])
