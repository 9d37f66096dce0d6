from dataclasses import replace

import numpy as np
import pytest
import torch

from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.loading import batches
from openbench.data.sources.items import ArrayItems
from openbench.training._images import load_images
from openbench.training.augment.augmentations import RandomCrop

from .training_toys import PREPROCESS, split

CPU = torch.device("cpu")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "preprocess",
    [PREPROCESS, Preprocess(12, 10, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)), Preprocess(8, 6, (0.3,), (0.2,))],
    ids=["stored size", "resized", "grey"],
)
def test_held_images_are_those_that_evaluation_reads(preprocess: Preprocess, workers: int) -> None:
    data = split(Role.ID_TRAIN, 33)
    expected = torch.cat(list(batches(data, preprocess, 10)))
    held = load_images(data, preprocess, CPU, workers)
    found = held.images(torch.arange(33))
    assert held.pixels.dtype == torch.uint8
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_grey_images_fill_three_channels() -> None:
    data = split(Role.ID_TRAIN, 4)
    grey = replace(data, items=ArrayItems(np.ascontiguousarray(data.items.pixels[..., 0]), np.arange(4)))
    pixels = load_images(grey, PREPROCESS, CPU).pixels.numpy()
    np.testing.assert_array_equal(pixels, np.repeat(data.items.pixels[..., :1], 3, axis=3))


def test_rows_select_and_order_the_images() -> None:
    held = load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU)
    rows = torch.tensor([7, 0, 7, 19])
    assert torch.equal(held.images(rows), held.images(torch.arange(20))[rows])


def test_clean_passes_over_everything_once_in_order() -> None:
    held = load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU)
    parts = list(held.clean(8))
    assert [len(rows) for _, _, rows in parts] == [8, 8, 4]
    assert torch.cat([rows for *_, rows in parts]).tolist() == list(range(20))
    assert torch.equal(torch.cat([labels for _, labels, _ in parts]), held.labels)


def test_held_pixels_survive_augmentation_and_normalisation() -> None:
    held = load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU)
    before = held.pixels.clone()
    held.augmented(torch.arange(20), (RandomCrop(0),), torch.Generator())
    held.images(torch.arange(20))
    assert torch.equal(held.pixels, before)
