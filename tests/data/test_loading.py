import threading
import time
from functools import partial

import numpy as np
import pytest
import torch

from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.loading import apply, batches
from openbench.data.sources.base import ArrayItems, FileItems
from openbench.errors import DataError

from .conftest import noisy, write_image
from .made import split_of

far = partial(split_of, role=Role.FAR)
PREPROCESS = Preprocess(32, 32, (0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


class Listed(list):
    """Items of mixed kinds."""


class Counting:
    """Items that note which image is read and in which thread."""

    def __init__(self, n):
        self.n, self.read, self.threads = n, [], set()

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        self.threads.add(threading.current_thread().name)
        return np.full((32, 32, 3), index, np.uint8)


@pytest.fixture(params=["array", "planar array", "grey array", "other size", "files", "mixed"])
def split(request, tmp_path):
    if request.param == "array":
        return far(ArrayItems(noisy((30, 32, 32, 3)), np.random.default_rng(0).permutation(30)[:23]))
    if request.param == "planar array":
        return far(ArrayItems(noisy((30, 3, 32, 32)).transpose(0, 2, 3, 1), np.arange(5, 28)))
    if request.param == "grey array":
        return far(ArrayItems(noisy((23, 32, 32)), np.arange(23)))
    if request.param == "other size":
        return far(ArrayItems(noisy((23, 28, 28)), np.arange(23)))
    if request.param == "files":
        for i in range(23):
            write_image(tmp_path / f"{i}.png", noisy((40 + i, 50, 3), i))
        return far(FileItems([tmp_path / f"{i}.png" for i in range(23)]))
    return far(Listed(noisy((32, 32) if i % 3 else (36, 33, 3), i) for i in range(23)))


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_batches_are_the_images_one_by_one_in_order(split, batch_size, workers):
    expected = torch.stack([apply(split.items[i], PREPROCESS) for i in range(len(split))])
    found = list(batches(split, PREPROCESS, batch_size, workers))
    assert [len(b) for b in found[:-1]] == [batch_size] * (len(found) - 1)
    assert torch.equal(torch.cat(found), expected)
    assert all(b.dtype == torch.float32 and b.is_contiguous() for b in found)


def test_workers_prepare_the_next_batch_before_it_is_asked_for():
    items = Counting(20)
    stream = batches(far(items), PREPROCESS, 5, workers=2)
    next(stream)
    deadline = time.monotonic() + 4
    while len(items.read) < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert 10 <= len(items.read) <= 15
    assert threading.current_thread().name not in items.threads
    stream.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_names_split_key_and_file(tmp_path, workers):
    for i in range(4):
        write_image(tmp_path / f"{i}.png", noisy((32, 32, 3), i))
    (tmp_path / "2.png").write_bytes(b"no image")
    split = far(FileItems([tmp_path / f"{i}.png" for i in range(4)]))
    with pytest.raises(DataError, match=r"split 'set' \(far\), image 'set/2\.png': .*2\.png' cannot be read"):
        list(batches(split, PREPROCESS, 2, workers))
