"""What a method may ask of the loop: several views of an image, a rate of its own, mixed images with their labels."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from openbench.core.request import Role
from openbench.training.augment.augmentations import RandomCrop
from openbench.training.augment.mixing import Mixed, Mixing
from openbench.training.base import Batch, TrainingMethod
from openbench.training.loop._loop import train
from openbench.training.recipe import Recipe

from .training_toys import PREPROCESS, QUIET, RECIPE, backbone, job, split

SEEN: list[Batch] = []


@dataclass(frozen=True)
class Noting(TrainingMethod):
    """Cross-entropy that notes what it is given."""

    recipe: Recipe = field(default_factory=lambda: RECIPE)
    reference = "none"
    version = 1
    mixes: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        SEEN.append(batch)
        return functional.cross_entropy(model(batch.images), batch.labels)


@dataclass(frozen=True)
class Twice(Noting):
    views: ClassVar[int] = 2


@dataclass(frozen=True)
class Halves(Mixing):
    """Half of each image and half of the next."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Mixed:
        return Mixed(0.75 * images + 0.25 * images.roll(-1, 0), torch.arange(len(images)).roll(-1), 0.75)


def normalised(rows: np.ndarray) -> Tensor:
    pixels = split(Role.ID_TRAIN, 70).items.pixels[rows]
    scaled = (pixels / 255 - np.array(PREPROCESS.mean)) / np.array(PREPROCESS.std)
    return torch.from_numpy(scaled).permute(0, 3, 1, 2).float()


def test_two_views_are_the_same_images_augmented_anew(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Twice(replace(RECIPE, epochs=1, augment=(RandomCrop(3),)))), tmp_path, QUIET)
    for batch in SEEN:
        first, second = batch.rows.chunk(2)
        assert torch.equal(first, second)
        assert len(batch.images) == len(batch.labels) == len(batch.rows)
        labels = split(Role.ID_TRAIN, 70).labels[batch.rows.numpy()]
        assert batch.labels.tolist() == labels.tolist()
        one, two = batch.images.chunk(2)
        assert not torch.equal(one, two)
    assert sorted(torch.cat([b.rows.chunk(2)[0] for b in SEEN]).tolist()) == list(range(70))


def test_mixed_images_come_with_the_labels_of_both(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Noting(replace(RECIPE, epochs=1, augment=(Halves(),)))), tmp_path, QUIET)
    labels = split(Role.ID_TRAIN, 70).labels
    for batch in SEEN:
        rows = batch.rows.numpy()
        assert batch.labels.tolist() == labels[rows].tolist()
        assert batch.partners.tolist() == labels[np.roll(rows, -1)].tolist()
        assert batch.share == 0.75
        expected = 0.75 * normalised(rows) + 0.25 * normalised(np.roll(rows, -1))
        torch.testing.assert_close(batch.images, expected, rtol=0, atol=1e-5)


@dataclass(frozen=True)
class Sliding(TrainingMethod):
    """A loss with gradient 1 for every bias, one of them at a constant rate, another at a tenth of the rate."""

    recipe: Recipe = field(default_factory=lambda: RECIPE)
    reference = "none"
    version = 1

    def parameter_groups(self, model: nn.Module) -> list[dict[str, object]]:
        return [
            {"params": [model.conv.bias]},
            {"params": [model.fc.bias], "lr_constant": True},
            {"params": [model.bn.bias], "lr_scale": 0.1},
        ]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return sum(part.bias.sum() for part in (model.conv, model.bn, model.fc))


def test_groups_move_at_the_rates_that_they_ask_for(tmp_path: Path) -> None:
    recipe = Recipe(epochs=4, batch_size=16, lr=0.05, momentum=0, nesterov=False, weight_decay=0)
    made = job(Sliding(recipe))
    before = backbone().initialise(made.seed).module().state_dict()
    train(made, tmp_path, QUIET)
    after = load_file(tmp_path / "last.safetensors")
    total = sum(recipe.learning_rate(t, 5) for t in range(20))
    assert total < 0.6 * 20 * 0.05
    for name, way in (("conv.bias", total), ("fc.bias", 20 * 0.05), ("bn.bias", 0.1 * total)):
        torch.testing.assert_close(before[name] - after[name], torch.full_like(after[name], way), rtol=1e-4, atol=1e-6)
