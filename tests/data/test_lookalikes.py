import numpy as np
import pytest
from PIL import Image as Pillow
from sklearn.datasets import load_sample_images

from openbench.data.checking.lookalikes import lookalikes

from .made import benchmark_of


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
    expected = {(f"train/{i}.png", f"test/{i}.png") for i in range(len(chosen))}
    assert {(pair.first[1], pair.second[1]) for pair in found} == expected
    assert [pair.difference for pair in found] == sorted(pair.difference for pair in found)


def test_different_pictures_and_plain_ones_are_not(pictures):
    half = len(pictures) // 2
    assert lookalikes(benchmark_of(train=pictures[:half], test=pictures[half:])) == []


def test_only_splits_that_must_be_apart_are_compared(pictures):
    assert lookalikes(benchmark_of(near=pictures[:3], far=pictures[:3])) == []
    assert len(lookalikes(benchmark_of(near=pictures[:3], test=pictures[:3]))) == 3
