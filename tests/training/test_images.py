import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp

from openbench import _compat
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.loading import batches
from openbench.data.sources.base import ArrayItems, FileItems
from openbench.errors import DataError
from openbench.training import _images as module
from openbench.training._images import ImageSet
from openbench.training.augment.reading import PictureFolder, PreparedVersions, RandomResizedCrop, Reading

from .training_toys import PREPROCESS, draws, image_set, split

v2 = _compat.library("torchvision.transforms.v2")
ROWS = [torch.tensor([3, 1, 4]), torch.tensor([5, 1]), torch.tensor([9, 2, 6])]
CROPPED = {"reading": RandomResizedCrop()}


def images(**changes) -> ImageSet:
    return image_set(split(Role.ID_TRAIN, 20), **changes)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "preprocess",
    [PREPROCESS, Preprocess(12, 10, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)), Preprocess(8, 6, (0.3,), (0.2,))],
    ids=["stored size", "resized", "grey"],
)
def test_images_held_or_not_are_those_that_evaluation_reads(monkeypatch, preprocess: Preprocess, workers: int) -> None:
    held = images(preprocess=preprocess, workers=workers)
    monkeypatch.setattr(module, "MAX_BYTES", 0)
    read = images(preprocess=preprocess, workers=workers)
    expected = torch.cat(list(batches(split(Role.ID_TRAIN, 20), preprocess, 10)))
    rows = torch.tensor([7, 0, 7, 19])
    for found in (held, read):
        parts = list(found.clean(8))
        assert torch.cat([rows for *_, rows in parts]).tolist() == list(range(20))
        assert torch.equal(torch.cat([labels for _, labels, _ in parts]), found.labels)
        torch.testing.assert_close(torch.cat([batch for batch, *_ in parts]), expected, rtol=0, atol=2e-6)
        torch.testing.assert_close(found.images(rows), expected[rows], rtol=0, atol=2e-6)
        (stored,) = found.epoch([rows], draws())
        assert torch.equal(stored, held.pixels[rows])
    assert read.pixels is None


def test_grey_images_fill_three_channels() -> None:
    data = split(Role.ID_TRAIN, 4)
    grey = replace(data, items=ArrayItems(np.ascontiguousarray(data.items.pixels[..., 0]), np.arange(4)))
    expected = np.repeat(data.items.pixels[..., :1], 3, axis=3)
    np.testing.assert_array_equal(image_set(grey).stored(torch.arange(4)).numpy(), expected)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_drawn_depends_on_seed_and_place_alone(workers: int) -> None:
    first, again = (list(images(workers=n, **CROPPED).epoch(ROWS, draws(5))) for n in (0, workers))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    # Row 1 came twice, second in two batches: the place counts from the epoch's beginning.
    assert not torch.equal(first[0][1], first[1][1])
    assert not torch.equal(next(images(**CROPPED).epoch(ROWS, draws(6))), first[0])


def test_only_the_wanted_share_is_read() -> None:
    whole = images(**CROPPED).epoch(ROWS, draws())
    for full, own in zip(whole, images(**CROPPED).epoch(ROWS, draws(), lambda count: slice(1, count)), strict=True):
        assert torch.equal(own[1:], full[1:])
        assert not own[0].any()


def test_images_are_read_ahead_of_the_network() -> None:
    read = []

    @dataclass(frozen=True)
    class Slow(Reading):
        def __call__(self, image, side, rng):
            read.append(threading.current_thread().name)
            return image

    next(images(workers=2, reading=Slow()).epoch(ROWS, draws()))
    end = time.monotonic() + 600
    while len(read) < 8:
        assert time.monotonic() < end, "nothing was read before it was asked for"
        time.sleep(0.01)
    assert threading.current_thread().name not in read


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    data = replace(split(Role.ID_TRAIN, 3), items=FileItems([tmp_path / "gone.png"] * 3))
    with pytest.raises(DataError, match="image 'toy/2'"):
        next(image_set(data, **CROPPED).epoch([torch.tensor([2, 0])], draws()))


def test_the_part_is_resized_as_torchvision_does() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    kind = RandomResizedCrop()
    top, left, height, width = kind.part(40, 30, np.random.default_rng(7))
    theirs = v2.functional.resized_crop(Image.fromarray(image), top, left, height, width, [16, 16])
    assert np.array_equal(kind(image, 16, np.random.default_rng(7)), np.asarray(theirs))


@pytest.mark.parametrize(
    ("height", "width", "scale"), [(60, 40, (0.08, 1.0)), (10, 200, (0.9, 1.0)), (50, 50, (0.5, 0.6))]
)
def test_parts_are_distributed_as_torchvisions(height: int, width: int, scale: tuple[float, float]) -> None:
    rng, n = np.random.default_rng(0), 1500
    ours = np.array([RandomResizedCrop(scale, (0.5, 1.0)).part(height, width, rng) for _ in range(n)])
    theirs = v2.RandomResizedCrop(16, scale=scale, ratio=(0.5, 1.0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [theirs.make_params([torch.empty(3, height, width)]) for _ in range(n)]
    expected = np.array([[m["top"], m["left"], m["height"], m["width"]] for m in made])
    for column in range(4):
        assert ks_2samp(ours[:, column], expected[:, column]).pvalue > 1e-3


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedVersions:
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    for name, value in (("dark", 10), ("light", 240)):
        (tmp_path / name).mkdir()
        for number in range(20):
            Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(tmp_path / name / f"{number}.png")
    return PreparedVersions([PictureFolder(name, "any") for name in ("dark", "light")], strip="toy/")


def test_versions_and_the_image_itself_come_equally_often(versions: PreparedVersions) -> None:
    (found,) = images(reading=versions).epoch([torch.arange(20).repeat(30)], draws())
    kinds = [{10: "dark", 240: "light"}.get(int(p.float().mean()), "own") for p in found]
    share = pytest.approx(1 / 3, abs=0.06)
    assert {name: kinds.count(name) / 600 for name in set(kinds)} == {"own": share, "dark": share, "light": share}


def test_a_missing_version_is_named(versions: PreparedVersions, tmp_path: Path) -> None:
    for file in tmp_path.rglob("7.png"):
        file.unlink()
    source = np.random.default_rng(0)
    for key, words in (("toy/7", "has no version .* of training image 'toy/7'"), ("cifar/7", "not begin with 'toy/'")):
        with pytest.raises(DataError, match=words):
            [versions.replaced(key, source) for _ in range(20)]
