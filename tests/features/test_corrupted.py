"""Corrupted copies are made in the network's crop, which is that of the clean images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from openbench.core.preprocess import OwnPreprocess, OwnTransform, Preprocess
from openbench.core.request import Corruption
from openbench.data.loading import batches
from openbench.data.sources.imagenet_c import corrupt
from openbench.features.changed_images import corrupted

from .feature_toys import toy_split
from .test_mixed import centre

WHOLE = list(np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8))


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


def test_a_transform_of_ones_own_takes_its_crop_once_of_a_whole_corrupted_image() -> None:
    split, preprocess = (
        replace(toy_split(3), items=WHOLE),
        OwnPreprocess(4, 4, own=OwnTransform("centre", "1", "RGB", centre)),
    )
    copies = corrupted(split, Corruption("brightness", 2), preprocess)
    (found,) = batches(copies, preprocess, 3)
    brighter = [corrupt(image, "brightness", 2, np.random.default_rng(0)) for image in split.items]  # draws nothing
    assert torch.equal(found, torch.stack([centre(image) for image in brighter]))
