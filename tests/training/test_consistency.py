from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.spatial.distance import jensenshannon
from torch.nn import functional

from openbench import _compat
from openbench.training.augment.augmentations import Augmentation, Consistency, HorizontalFlip, JensenShannon
from openbench.training.loop._loop import train

from .training_toys import QUIET, RECIPE, ToyEntropy, ToyPrototypes, job


def logits(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(7, 5, generator=generator) for _ in range(3)]


def test_the_loss_with_cross_entropy_is_that_of_timm() -> None:
    z, labels = logits(0), torch.arange(7) % 5
    theirs = _compat.library("timm.loss").JsdCrossEntropy(num_splits=3, alpha=12, smoothing=0)(
        torch.cat(z), labels.repeat(3)
    )
    torch.testing.assert_close(functional.cross_entropy(z[0], labels) + JensenShannon().loss(z), theirs)


def test_for_two_versions_it_is_scipys_divergence() -> None:
    z = logits(1)[:2]
    p, q = (torch.softmax(one, 1).double().numpy() for one in z)
    expected = np.mean([jensenshannon(a, b) ** 2 for a, b in zip(p, q, strict=True)])
    assert float(JensenShannon(weight=1.0).loss(z)) == pytest.approx(expected, rel=1e-5)


@dataclass(frozen=True)
class Inverted(Augmentation):
    def __call__(self, images, generator):
        return 255 - images


@dataclass(frozen=True)
class Watching(Consistency):
    """Notes what it compares."""

    seen: ClassVar[list] = []

    def versions(self, pixels, generator):
        return [255 - pixels]

    def loss(self, logits):
        self.seen.append([z.detach() for z in logits])
        return 0 * sum(z.sum() for z in logits)


def test_versions_are_of_the_augmented_images_and_answers_come_in_their_order(tmp_path: Path) -> None:
    Watching.seen.clear()
    recipe = replace(RECIPE, epochs=1, augment=(HorizontalFlip(1.0), Watching()))
    train(job(ToyEntropy(recipe)), tmp_path, QUIET)
    assert len(Watching.seen) == 5
    assert [len(z) for z in Watching.seen[0]] == [16, 16]
    assert not torch.equal(*Watching.seen[0])


@pytest.mark.parametrize("method", [ToyEntropy, ToyPrototypes])
def test_it_joins_any_method_and_pulls_the_answers_together(tmp_path: Path, method) -> None:
    def divergence(weight: float) -> float:
        recipe = replace(RECIPE, augment=(JensenShannon(Inverted(), weight),))
        made = job(method(recipe))
        train(made, tmp_path / str(weight), QUIET)
        model = made.backbone.module().eval()
        model.load_state_dict(load_file(tmp_path / str(weight) / "last.safetensors"))
        images = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            return float(JensenShannon(Inverted(), 1.0).loss([model(images), model(-images), model(-images)]))

    assert divergence(30.0) < 0.5 * divergence(0.0)
