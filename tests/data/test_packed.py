import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from openbench import checkout
from openbench.core.preprocess import Preprocess
from openbench.data.decoded_cache import packed
from openbench.data.loading import batches
from openbench.data.sources import items
from openbench.data.sources.items import ArrayItems, FileItems
from openbench.errors import DataError
from openbench.methods import knn

from .conftest import noisy, write_image
from .made import split_of


@pytest.fixture
def files(tmp_path):
    """Write images and return the split of their files."""

    def make(images):
        paths = []
        for i, image in enumerate(images):
            path = tmp_path / "images" / f"{i}.png"
            write_image(path, image)
            paths.append(path)
        return replace(split_of(np.zeros((len(images), 1, 1), np.uint8)), items=FileItems(paths))

    return make


@pytest.mark.parametrize("shape", [(12, 10, 3), (12, 10)])
@pytest.mark.parametrize("workers", [0, 3])
def test_batches_are_the_same_bit_for_bit(files, tmp_path, shape, workers):
    split = files(noisy((40, *shape)))
    quick = packed(split, tmp_path / "cache", workers)
    assert isinstance(quick.items, ArrayItems)
    for preprocess in (Preprocess(resize=8, crop=8), Preprocess(resize=16, crop=14)):
        slow = torch.cat(list(batches(split, preprocess, 7)))
        assert torch.equal(torch.cat(list(batches(quick, preprocess, 16))), slow)


def test_files_are_decoded_once(files, tmp_path):
    split = files(noisy((20, 8, 8, 3)))
    expected = [split.items[i] for i in range(20)]
    packed(split, tmp_path / "cache")
    # The same size and time, no image any more; only the first is still looked at, for its shape.
    for path in split.items.files[1:]:
        stat = path.stat()
        path.write_bytes(b"\0" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = packed(split, tmp_path / "cache")
    assert all(np.array_equal(again.items[i], expected[i]) for i in range(20))


def test_a_file_that_was_replaced_is_decoded_again(files, tmp_path):
    split = files(noisy((20, 8, 8, 3)))
    packed(split, tmp_path / "cache")
    other = noisy((8, 8, 3), 99)
    write_image(split.items.files[11], other)
    os.utime(split.items.files[11], (1, 1))
    assert np.array_equal(packed(split, tmp_path / "cache").items[11], other)


def test_a_decoder_with_uncommitted_changes_decodes_for_itself(files, tmp_path, monkeypatch):
    split, decode, decoder = files(noisy((20, 8, 8, 3))), items.decode, Path(items.__file__)
    monkeypatch.setattr(checkout, "_changed", dict)
    committed = packed(split, tmp_path / "cache").items[11]
    monkeypatch.setattr(checkout, "_changed", lambda: {"openbench/data/sources/items.py": decoder})
    monkeypatch.setattr(items, "decode", lambda *args: 255 - decode(*args))
    assert np.array_equal(packed(split, tmp_path / "cache").items[11], 255 - committed)
    monkeypatch.setattr(checkout, "_changed", dict)
    assert np.array_equal(packed(split, tmp_path / "cache").items[11], committed)


def test_changes_that_decode_nothing_leave_decoded_images_as_they_are(files, tmp_path, monkeypatch):
    split, method = files(noisy((20, 8, 8, 3))), Path(knn.__file__)
    monkeypatch.setattr(checkout, "_changed", dict)
    packed(split, tmp_path / "cache")
    before = sorted((tmp_path / "cache").iterdir())
    monkeypatch.setattr(checkout, "_changed", lambda: {"openbench/methods/knn.py": method})
    packed(split, tmp_path / "cache")
    assert sorted((tmp_path / "cache").iterdir()) == before


def test_images_of_several_shapes_stay_files(files, tmp_path):
    split = files([noisy((8, 8, 3)), noisy((8, 9, 3))])
    assert packed(split, tmp_path / "cache") is split
    assert [p.suffix for p in (tmp_path / "cache").iterdir()] == [".lock"]


def test_large_images_and_arrays_stay_as_they_are(files, tmp_path):
    large = files([noisy((97, 20, 3))])
    assert packed(large, tmp_path / "cache") is large
    arrays = split_of(noisy((4, 8, 8, 3)))
    assert packed(arrays, tmp_path / "cache") is arrays
    assert not (tmp_path / "cache").exists()


def test_an_unreadable_image_leaves_no_array(files, tmp_path):
    split = files(noisy((5, 8, 8, 3)))
    split.items.files[3].write_bytes(b"no image")
    with pytest.raises(DataError, match="cannot be read"):
        packed(split, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.npy"))
    assert not list((tmp_path / "cache").glob("*.packing"))


def damage_zeros(path):
    content = path.read_bytes()
    path.write_bytes(content[:300] + bytes(500) + content[800:])


def damage_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_empty(path):
    path.write_bytes(b"")


def damage_sidecar(path):
    path.with_suffix(".json").write_text("{")


def damage_no_sidecar(path):
    path.with_suffix(".json").unlink()


@pytest.mark.parametrize("damage", [damage_zeros, damage_half, damage_empty, damage_sidecar, damage_no_sidecar])
def test_a_damaged_array_is_reported_and_decoded_again(files, tmp_path, damage):
    split = files(noisy((20, 8, 8, 3)))
    expected = np.stack([split.items[i] for i in range(20)])
    packed(split, tmp_path / "cache")
    (array,) = (tmp_path / "cache").glob("*.npy")
    before = array.stat()
    damage(array)
    os.utime(array, ns=(before.st_atime_ns, before.st_mtime_ns))
    said = []
    again = packed(split, tmp_path / "cache", say=said.append)
    assert np.array_equal(again.items.gather(0, 20), expected)
    assert said[0].endswith("decoded again")
    said.clear()
    packed(split, tmp_path / "cache", say=said.append)
    assert said == []


def test_others_may_read_the_array(files, tmp_path):
    split = files(noisy((20, 8, 8, 3)))
    mask = os.umask(0o022)
    try:
        packed(split, tmp_path / "cache")
    finally:
        os.umask(mask)
    (array,) = (tmp_path / "cache").glob("*.npy")
    assert array.stat().st_mode & 0o777 == 0o644
    assert {p.suffix for p in (tmp_path / "cache").iterdir()} == {".npy", ".json", ".lock"}
