from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from openbench.errors import DataError
from openbench.training.augment.pixmix import (
    PixMix,
    added,
    chaos_game,
    fractals,
    multiplied,
    operated,
    random_system,
)
from openbench.training.augment.reading import PictureFolder


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture
def image() -> np.ndarray:
    return rng(3).integers(0, 256, (12, 12, 3), dtype=np.uint8)


def test_the_chaos_game_walks_on_the_attractor() -> None:
    """Three maps that halve give Sierpinski's triangle: no point in the middle quarter, corners reached."""
    corners = np.array([[0, 0], [1, 0], [0, 1]]) / 2
    maps = np.concatenate([np.tile(np.eye(2) / 2, (3, 1, 1)), corners[:, :, None]], axis=2)
    points, which = chaos_game(maps, np.full(3, 1 / 3), 20, rng())
    x, y = points.T
    assert ((x >= 0) & (y >= 0) & (x + y <= 1 + 1e-9)).all()
    assert not ((x < 0.5 - 1e-4) & (y < 0.5 - 1e-4) & (x + y > 0.5 + 1e-4)).any()
    assert x.max() > 0.98
    assert y.max() > 0.98
    # Equal maps come equally often, and the map that came last says in which third a point lies.
    assert np.abs(np.bincount(which, minlength=3) / len(which) - 1 / 3).max() < 0.02
    assert (x[which == 1] >= 0.5).all()
    assert (y[which == 2] >= 0.5).all()


def test_maps_are_drawn_in_proportion_to_the_area_they_keep() -> None:
    for seed in range(20):
        maps, weights = random_system(rng(seed))
        areas = np.abs(np.linalg.det(maps[:, :, :2]))
        np.testing.assert_allclose(weights, np.maximum(areas, 0.01) / np.maximum(areas, 0.01).sum())
        assert np.linalg.norm(maps[:, :, :2], ord=2, axis=(1, 2)).max() < 1, "each map shrinks all distances"


def test_fractals_depend_on_their_seed_alone() -> None:
    first = fractals(6, 16, 0)
    np.random.default_rng().random()
    fractals.cache_clear()
    assert np.array_equal(fractals(4, 16, 0), first[:4])
    assert not np.array_equal(fractals(4, 16, 1), first[:4])
    assert len({picture.tobytes() for picture in first}) == 6
    assert all(picture.std() > 10 for picture in first), "a picture, not a plain ground"


def test_sums_and_products_follow_their_formulas() -> None:
    x, y = np.array([0.0, 0.25, 1.0]), np.array([1.0, 0.5, 0.0])
    np.testing.assert_allclose(added(x, y, 0.5, 0.25), [0.375, 0.375, 0.625])
    np.testing.assert_allclose(multiplied(x, y, 2.0, 1.0), [0.0, 0.125, 0.0], atol=1e-30)
    assert np.isfinite(multiplied(x, y, 1.0, -0.9)).all()


def test_strengths_have_their_means() -> None:
    """Half Beta(β, 1) and Beta(1, β), half 1 + Beta(1, β) and −Beta(1, β): E a = (β/(1+β) + 1 + 1/(1+β))/2, E b = 0."""
    source, kind = rng(), PixMix(beta=3.0)
    a, b = np.array([kind.powers(source) for _ in range(20_000)]).T
    assert a.mean() == pytest.approx(1, abs=0.01)
    assert b.mean() == pytest.approx(0, abs=0.01)
    assert np.abs(b).mean() == pytest.approx(1 / 4, abs=0.01)
    assert ((a > 1) == (b < 0)).all()


def test_operations_are_those_of_their_names(image: np.ndarray) -> None:
    picture = Image.fromarray(image)
    assert np.array_equal(operated(image, "solarize", 0.5), np.where(image < 128, image, 255 - image))
    assert np.array_equal(operated(image, "posterize", 0.5), image & 0b11000000)
    assert np.array_equal(operated(image, "autocontrast", 0.3), np.asarray(ImageOps.autocontrast(picture)))
    shifted = operated(image, "translate_x", 0.5)  # 12·0.5/3 = 2 pixels
    assert np.array_equal(shifted[:, :-2], image[:, 2:])
    assert (shifted[:, -2:] == 0).all()
    down = operated(image, "translate_y", 0.5, -1)
    assert np.array_equal(down[2:], image[:-2])
    assert not np.array_equal(operated(image, "rotate", 0.9), operated(image, "rotate", 0.9, -1))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    place = tmp_path / "mixing"
    (place / "deep").mkdir(parents=True)
    for number in range(3):
        grey = np.full((20, 30, 3), 50 * (number + 1), np.uint8)
        Image.fromarray(grey).save(place / "deep" / f"{number}.png")
    return place


def content_of(name: str) -> str:
    with pytest.raises(DataError, match="set content=") as caught:
        PictureFolder(name, "any").files()
    return str(caught.value).split("set content=")[1].split()[0]


def test_a_folder_is_a_mixing_set_once_its_content_is_said(folder: Path) -> None:
    pictures = PictureFolder("mixing", content_of("mixing")).pictures(8)
    assert [int(picture.mean()) for picture in pictures] == [50, 100, 150]
    assert pictures.shape == (3, 8, 8, 3)


def test_other_pictures_and_a_missing_folder_are_noticed(folder: Path) -> None:
    before = content_of("mixing")
    file = next(folder.rglob("*.png"))
    file.write_bytes(file.read_bytes()[:-1] + b"!")  # of the same name and size
    assert content_of("mixing") != before
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(folder / "more.png")
    with pytest.raises(DataError, match="4 pictures"):
        PictureFolder("mixing", before).files()
    with pytest.raises(DataError, match=rf"'fractals' .* is missing in {folder.parent}"):
        PictureFolder("fractals", "any").files()
