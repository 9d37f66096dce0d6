"""What a person looks at: contact sheets, and pictures that look alike."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image as Pillow
from sklearn.datasets import load_sample_images

from openbench.core.benchmark import RowItems, Split
from openbench.core.request import Role
from openbench.data.checking.contact_sheet import class_of_each, draw, stats_of, table_line
from openbench.data.checking.lookalikes import lookalikes
from openbench.data.sources.base import ArrayItems

from .conftest import noisy
from .made import CLASSES, benchmark_of, split_of


@pytest.fixture
def split():
    return split_of(noisy((80, 6, 9, 3)))


def test_numbers_are_those_of_the_pixels(split):
    pixels = split.items.pixels.reshape(-1, 3) / 255
    mean, std = (", ".join(f"{v:.3f}" for v in of) for of in (pixels.mean(axis=0), pixels.std(axis=0)))
    of_each = Counter(split.labels.tolist()).values()
    expected = f"{len(of_each)} classes of {min(of_each)} to {max(of_each)}"
    assert stats_of(split, CLASSES) == f"id_train/set: {len(split)} images, 6×9, mean [{mean}], std [{std}]; {expected}"


def test_grey_is_noticed_however_it_is_stored(split):
    planes = noisy((len(split), 5, 5))
    stored = replace(split, items=ArrayItems(np.repeat(planes[..., None], 3, axis=3), np.arange(len(split))))
    single = replace(split, items=ArrayItems(planes, np.arange(len(split))))
    assert stats_of(stored, CLASSES) == stats_of(single, CLASSES)
    assert "100% grey" in stats_of(single, CLASSES)


def test_an_ood_image_is_called_after_its_folder_unless_all_share_it(split):
    ood = replace(split, role=Role.FAR, labels=np.full(len(split), -1))
    by_class = replace(ood, keys=[f"set/{'ab'[i % 2]}/{i}.png" for i in range(len(ood))])
    assert set(class_of_each(by_class, ())) == {"a", "b"}
    together = replace(ood, keys=[f"set/test/{i}.png" for i in range(len(ood))], classes=("a", "b"))
    assert set(class_of_each(together, ())) == {"-"}
    assert "classes not named" in stats_of(together, ())


def test_images_stand_upright_in_the_order_of_the_set(split, tmp_path):
    pixels = np.zeros((len(split), 8, 8, 3), np.uint8)
    pixels[:, :4, :, 0] = 255 - np.arange(len(split))[:, None, None]  # the upper half is red
    pixels[:, 4:, :, 2] = 255 - np.arange(len(split))[:, None, None]  # the lower one blue
    marked = replace(split, items=ArrayItems(pixels, np.arange(len(split))))
    draw(marked, CLASSES, stats_of(marked, CLASSES), tmp_path / "marked.png")
    with Pillow.open(tmp_path / "marked.png") as sheet:
        seen = np.asarray(sheet.convert("RGB"))

    def middle(*colour):
        return np.argwhere((seen == colour).all(axis=2)).mean(axis=0)

    first, second, last = middle(255, 0, 0), middle(254, 0, 0), middle(255 - 79, 0, 0)
    assert abs(first[0] - second[0]) < 1 < middle(0, 0, 255)[0] - first[0] < last[0] - first[0]
    assert first[1] < second[1] < last[1]


def test_a_table_has_its_size_its_range_and_its_constant_columns():
    values = np.array([[0.0, 3.0, 1.0], [2.0, 3.0, -1.5]], np.float32)
    split = Split("t", Role.FAR, RowItems((values,)), np.full(2, -1), ["a", "b"], (), "", 2)
    assert table_line(split) == "far/t: 2 rows, 3 columns in [-1.5, 3], 1 constant"


@pytest.fixture(scope="module")
def pictures():
    """Different windows of two photographs, 64×64, those with some content."""
    photos = load_sample_images().images
    windows = [p[y : y + 64, x : x + 64] for p in photos for y in range(0, 360, 70) for x in range(0, 560, 70)]
    return np.stack([window for window in windows if window.std() > 30])


def saved_anew(image):
    import io

    stream = io.BytesIO()
    Pillow.fromarray(image).save(stream, "JPEG", quality=85)
    return np.asarray(Pillow.open(stream))


def lighter(image):
    return np.clip(image.astype(int) + 12, 0, 255).astype(np.uint8)


def scaled(image):
    return np.asarray(Pillow.fromarray(image).resize((48, 48), Pillow.Resampling.BICUBIC).resize((64, 64)))


@pytest.mark.parametrize("change", [saved_anew, lighter, scaled])
def test_the_same_picture_in_another_version_is_found(pictures, change):
    chosen = pictures[::6]
    moved = np.stack([change(image) for image in chosen])
    assert not any(np.array_equal(a, b) for a, b in zip(chosen, moved, strict=True))
    found = lookalikes(benchmark_of(train=chosen, test=moved))
    expected = {f"id_train/train 'train/{i}.png' ~ id_test/test 'test/{i}.png'" for i in range(len(chosen))}
    pairs, differences = zip(*(pair[:-1].rsplit(" (", 1) for pair in found), strict=True)
    assert set(pairs) == expected
    assert list(map(float, differences)) == sorted(map(float, differences))


def test_different_pictures_and_plain_ones_are_not(pictures):
    half = len(pictures) // 2
    assert lookalikes(benchmark_of(train=pictures[:half], test=pictures[half:])) == []


def test_only_splits_that_must_be_apart_are_compared(pictures):
    assert lookalikes(benchmark_of(near=pictures[:3], far=pictures[:3])) == []
    assert len(lookalikes(benchmark_of(near=pictures[:3], test=pictures[:3]))) == 3
