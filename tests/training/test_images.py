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
from openbench.data.sources.items import ArrayItems, FileItems
from openbench.errors import ConfigError, DataError
from openbench.training import _images as module
from openbench.training._images import ImagesInMemory, StreamedImages, load_images, open_images
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop
from openbench.training.augment.reading import PictureFolder, PreparedVersions, RandomResizedCrop, Reading
from openbench.training.loop._loop import train
from openbench.training.recipe import Recipe

from .training_toys import PREPROCESS, QUIET, RECIPE, ToyEntropy, ToyPrototypes, job, split

CPU = torch.device("cpu")
v2 = _compat.library("torchvision.transforms.v2")
ROWS = [torch.tensor([3, 1, 4]), torch.tensor([5, 1]), torch.tensor([9, 2, 6])]


def streamed(data=None, workers: int = 0, reading: Reading | None = None, preprocess=PREPROCESS) -> StreamedImages:
    return StreamedImages(split(Role.ID_TRAIN, 20) if data is None else data, preprocess, CPU, workers, reading)


@pytest.mark.parametrize(
    "preprocess", [PREPROCESS, Preprocess(12, 10, (0.4,) * 3, (0.2,) * 3), Preprocess(8, 6, (0.3,), (0.2,))]
)
def test_streamed_images_are_those_that_are_held(preprocess: Preprocess) -> None:
    data = split(Role.ID_TRAIN, 20)
    held, found = load_images(data, preprocess, CPU), streamed(data, preprocess=preprocess)
    rows = torch.tensor([7, 0, 7, 19])
    torch.testing.assert_close(found.images(rows), held.images(rows), rtol=0, atol=0.03)
    assert (found.stored(rows).int() - held.stored(rows).int()).abs().max() <= 1
    assert torch.equal(found.labels, held.labels)


def test_few_images_are_held_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = split(Role.ID_TRAIN, 20)
    assert isinstance(open_images(data, PREPROCESS, CPU, 0), ImagesInMemory)
    assert open_images(data, PREPROCESS, CPU, 0, RandomResizedCrop()).streams
    monkeypatch.setattr(module, "MAX_BYTES", 20 * 8 * 8 * 3 - 1)
    assert open_images(data, PREPROCESS, CPU, 0).streams


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_drawn_depends_on_seed_and_place_alone(workers: int) -> None:
    one, other = streamed(reading=RandomResizedCrop()), streamed(workers=workers, reading=RandomResizedCrop())
    for images in (one, other):
        images.plan(ROWS, 5)
    first = [one.stored(rows) for rows in ROWS]
    assert all(torch.equal(a, other.stored(rows)) for a, rows in zip(first, ROWS, strict=True))
    # Row 1 came twice, second in two batches: the place counts from the epoch's beginning.
    assert not torch.equal(first[0][1], first[1][1])
    one.plan(ROWS, 6)
    assert not torch.equal(one.stored(ROWS[0]), first[0])


def test_images_that_were_not_announced_have_the_geometry_of_evaluation() -> None:
    images = streamed(reading=RandomResizedCrop())
    images.plan(ROWS, 5)
    expected = load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU).stored(torch.tensor([8, 9]))
    assert torch.equal(images.stored(torch.tensor([8, 9])), expected)
    assert not torch.equal(
        images.stored(ROWS[0]), load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU).stored(ROWS[0])
    )


def test_only_the_wanted_share_is_read() -> None:
    whole, part = streamed(reading=RandomResizedCrop()), streamed(reading=RandomResizedCrop())
    whole.plan(ROWS, 5)
    part.plan(ROWS, 5, lambda count: slice(1, count))
    for rows in ROWS:
        full, own = whole.stored(rows), part.stored(rows)
        assert torch.equal(own[1:], full[1:])
        assert not own[0].any()


def test_images_are_read_ahead_of_the_network() -> None:
    read = []

    @dataclass(frozen=True)
    class Slow(Reading):
        def __call__(self, image, side, rng):
            read.append(threading.current_thread().name)
            return image

    images = streamed(workers=2, reading=Slow())
    images.plan(ROWS, 0)
    end = time.monotonic() + 600
    while len(read) < 8:
        assert time.monotonic() < end, "nothing was read before it was asked for"
        time.sleep(0.01)
    assert threading.current_thread().name not in read


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    data = replace(split(Role.ID_TRAIN, 3), items=FileItems([tmp_path / "gone.png"] * 3))
    images = streamed(data, reading=RandomResizedCrop())
    images.plan([torch.tensor([2, 0])], 0)
    with pytest.raises(DataError, match="image 'toy/2'"):
        images.stored(torch.tensor([2, 0]))


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


READ = replace(RECIPE, augment=(RandomResizedCrop((0.5, 1.0)), HorizontalFlip()))


@pytest.mark.parametrize("method", [ToyEntropy, ToyPrototypes])
def test_streamed_training_repeats_bit_for_bit_whatever_the_workers(tmp_path: Path, method) -> None:
    one = train(job(method(READ)), tmp_path / "one", QUIET)
    two = train(job(method(READ)), tmp_path / "two", replace(QUIET, workers=3))
    assert one.files == two.files


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names=("dark", "light")) -> list[PictureFolder]:
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    made = []
    for name, value in zip(names, (10, 240), strict=False):
        (tmp_path / name).mkdir()
        for number in range(20):
            Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(tmp_path / name / f"{number}.png")
        made.append(PictureFolder(name, "any"))
    return made


def test_versions_and_the_image_itself_come_equally_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = PreparedVersions(prepared(tmp_path, monkeypatch), strip="toy/")
    images = streamed(reading=kind)
    rows = torch.arange(20).repeat(30)
    images.plan([rows], 0)
    kinds = [{10: "dark", 240: "light"}.get(int(p.float().mean()), "own") for p in images.stored(rows)]
    assert {name: kinds.count(name) / 600 for name in set(kinds)} == {
        "own": pytest.approx(1 / 3, abs=0.06),
        "dark": pytest.approx(1 / 3, abs=0.06),
        "light": pytest.approx(1 / 3, abs=0.06),
    }


def test_a_missing_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = PreparedVersions(prepared(tmp_path, monkeypatch), strip="toy/")
    for file in tmp_path.rglob("7.png"):
        file.unlink()
    source = np.random.default_rng(0)
    with pytest.raises(DataError, match=r"has no version .* of training image 'toy/7'"):
        [kind.replaced("toy/7", source) for _ in range(20)]
    with pytest.raises(DataError, match="does not begin with 'toy/'"):
        [kind.replaced("cifar/7", source) for _ in range(20)]


def test_a_reading_comes_first() -> None:
    with pytest.raises(ConfigError, match="augment"):
        Recipe(augment=(HorizontalFlip(), RandomResizedCrop()))
    assert Recipe(augment=(RandomResizedCrop(),)).reading == RandomResizedCrop()
    assert Recipe(augment=(RandomResizedCrop(),)).augmentations == ()


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
    for images in (load_images(grey, PREPROCESS, CPU), streamed(grey)):
        found = images.stored(torch.arange(4)).numpy()
        np.testing.assert_array_equal(found, np.repeat(data.items.pixels[..., :1], 3, axis=3))


def test_rows_select_and_order_the_images_which_stay_as_they_are() -> None:
    held = load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU)
    rows, before = torch.tensor([7, 0, 7, 19]), held.pixels.clone()
    assert torch.equal(held.images(rows), held.images(torch.arange(20))[rows])
    held.augmented(torch.arange(20), (RandomCrop(0),), torch.Generator())
    assert torch.equal(held.pixels, before)


def test_clean_passes_over_everything_once_in_order() -> None:
    held = load_images(split(Role.ID_TRAIN, 20), PREPROCESS, CPU)
    parts = list(held.clean(8))
    assert [len(rows) for _, _, rows in parts] == [8, 8, 4]
    assert torch.cat([rows for *_, rows in parts]).tolist() == list(range(20))
    assert torch.equal(torch.cat([labels for _, labels, _ in parts]), held.labels)
