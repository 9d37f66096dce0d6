import itertools

import numpy as np
import pytest
import torch
import yaml

from openbench import _compat, paths
from openbench.compose.config import compose, scientific
from openbench.config.build import build
from openbench.training.augment.augmentations import (
    Augmentation,
    AugMix,
    Cutout,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
)
from openbench.training.augment.pixmix import PixMix
from openbench.training.augment.reading import PreparedVersions

from .training_toys import draws

v2 = _compat.library("torchvision.transforms.v2")
KINDS = [RandomCrop(2), HorizontalFlip(), Cutout(2, 3), RandAugment(2, 20), AugMix(), PixMix(drawn=5)]


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randint(0, 256, (8, 12, 10, 3), generator=draws(9)).to(torch.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_augmentation_keeps_its_contract(images: torch.Tensor, kind: Augmentation) -> None:
    before, state = images.clone(), torch.get_rng_state()
    first, again, other = kind(images, draws(5)), kind(images, draws(5)), kind(images, draws(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert (first.shape, first.dtype) == (images.shape, torch.uint8)
    assert not torch.equal(first, images)


@pytest.mark.parametrize("kind", [RandAugment(1, 30), AugMix(), PixMix(drawn=5)])
def test_every_image_gets_draws_of_its_own(kind: Augmentation) -> None:
    one = torch.randint(0, 256, (1, 12, 10, 3), generator=draws(1)).to(torch.uint8)
    found = kind(one.repeat(30, 1, 1, 1), draws(2))
    assert len({image.numpy().tobytes() for image in found}) > 5


def test_images_are_those_of_torchvision(images: torch.Tensor) -> None:
    found = RandAugment(2, 20)(images, draws(5))
    seed = int(torch.randint(0, 2**62, (), generator=draws(5)))
    theirs = v2.RandAugment(2, 20)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = [theirs(image.permute(2, 0, 1)).permute(1, 2, 0) for image in images]
    assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize("side", [1, 3, 4, 30])
def test_cutout_blanks_the_square_around_its_centre(side: int) -> None:
    white = torch.full((400, 9, 7, 3), 255, dtype=torch.uint8)
    holes = (Cutout(1, side, grey=0.0)(white, draws(0)) == 0).numpy()
    assert (holes.all(axis=3) == holes.any(axis=3)).all(), "all channels alike"
    seen = set()
    for hole in holes[..., 0]:
        rows, columns = hole.any(axis=1).nonzero()[0], hole.any(axis=0).nonzero()[0]
        assert hole.sum() == len(rows) * len(columns)
        assert len(rows) <= min(side, 9)
        assert len(columns) <= min(side, 7)
        seen.add((rows[0], rows[-1], columns[0], columns[-1]))
    # One rectangle per centre, cut off at the edges.
    spans = [{(max(c - side // 2, 0), min(c - side // 2 + side, n) - 1) for c in range(n)} for n in (9, 7)]
    assert seen <= {(*rows, *columns) for rows in spans[0] for columns in spans[1]}
    assert len(seen) >= 0.9 * len(spans[0]) * len(spans[1])


def test_several_holes_and_the_grey_they_are_filled_with() -> None:
    white = torch.full((200, 20, 20, 1), 255, dtype=torch.uint8)
    one, four = (Cutout(k, 4, grey=0.5)(white, draws(0)) for k in (1, 4))
    assert set(four.unique().tolist()) == {128, 255}
    assert 2 * np.mean(one.numpy() == 128) < np.mean(four.numpy() == 128) < 4.2 * np.mean(one.numpy() == 128)


def of_file(name: str) -> list[dict]:
    """What a file of the group puts behind, or in place of, the augmentation of a recipe."""
    file = yaml.safe_load((paths.config_dir() / "augment" / f"{name}.yaml").read_text())
    return file.get("then") or file["augment"]


FILES = sorted(file.stem for file in (paths.config_dir() / "augment").glob("*.yaml"))
TRAININGS = list(zip(FILES, itertools.cycle(["cross_entropy", "logitnorm", "outlier_exposure"])))


@pytest.mark.parametrize(("name", "training"), TRAININGS)
def test_an_augmentation_of_the_group_joins_any_training_and_has_the_defaults_of_its_class(name: str, training) -> None:
    typed = ["+benchmark=openset_digits", f"training={training}", f"+augment={name}"]
    node = scientific(compose("train", typed), {"augment": name, "training": training}, "train")["training"]
    recipe = build(node, "training").recipe
    assert recipe.epochs == 20, "what the benchmark overrides stays"
    own = [node["_target_"].rpartition(".")[2] for node in of_file(name)]
    made = recipe.augment[-len(own) :]
    assert [type(kind).__name__ for kind in made] == own
    # Those that need folders have no defaults.
    assert all(isinstance(kind, PreparedVersions) or kind == type(kind)() for kind in made)


@pytest.fixture
def many() -> torch.Tensor:
    return torch.randint(1, 256, (64, 9, 7, 3), generator=draws(9)).to(torch.uint8)


def padded(image: np.ndarray, p: int) -> np.ndarray:
    return np.pad(image, ((p, p), (p, p), (0, 0)))


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crop_cuts_the_windows_that_numpy_cuts_one_by_one(many: torch.Tensor, padding: int) -> None:
    cropped = RandomCrop(padding)(many, draws(3)).numpy()
    top, left = torch.randint(0, 2 * padding + 1, (2, len(many)), generator=draws(3)).tolist()
    for i, image in enumerate(many.numpy()):
        window = padded(image, padding)[top[i] : top[i] + 9, left[i] : left[i] + 7]
        np.testing.assert_array_equal(cropped[i], window)


def test_flip_mirrors_left_to_right_about_half_of_the_images(many: torch.Tensor) -> None:
    many = many.repeat(40, 1, 1, 1)
    flipped = HorizontalFlip()(many, draws(0)).numpy()
    mirrored = 0
    for before, after in zip(many.numpy(), flipped, strict=True):
        is_mirror = np.array_equal(after, before[:, ::-1])
        assert is_mirror or np.array_equal(after, before)
        mirrored += is_mirror
    assert abs(mirrored / len(many) - 0.5) < 5 * 0.5 / len(many) ** 0.5
