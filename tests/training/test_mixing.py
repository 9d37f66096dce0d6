from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.spatial.distance import jensenshannon
from scipy.stats import beta, kstest
from torch.nn import functional

from openbench import _compat
from openbench.errors import ConfigError
from openbench.training.augment.augmentations import (
    Augmentation,
    Consistency,
    CutMix,
    HorizontalFlip,
    JensenShannon,
    Mixing,
    Mixup,
    RegMixup,
    draw_share,
)
from openbench.training.base import Batch, TrainingMethod
from openbench.training.loop._loop import train
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.methods.heads import ConfBranch

from .training_toys import QUIET, RECIPE, ToyEntropy, ToyPrototypes, draws, job

KINDS = [Mixup(1.0), RegMixup(2.0), CutMix(1.0)]


@pytest.fixture
def images() -> torch.Tensor:
    """Image i is i everywhere."""
    return torch.arange(16.0)[:, None, None, None].expand(16, 3, 9, 7).contiguous()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 20.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    generator = draws(0)
    assert kstest([draw_share(alpha, generator) for _ in range(1000)], beta(alpha, alpha).cdf).pvalue > 1e-4


@pytest.mark.parametrize("kind", [Mixup(1.0), RegMixup(2.0)])
def test_mixup_is_the_weighted_sum_of_an_image_and_its_partner(images: torch.Tensor, kind: Mixing) -> None:
    mixed = kind(images, draws(3))
    assert sorted(mixed.partners.tolist()) == list(range(16))
    for i, j in enumerate(mixed.partners.tolist()):
        np.testing.assert_allclose(mixed.images[i].numpy(), mixed.share * i + (1 - mixed.share) * j, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_cutmix_pastes_one_rectangle_of_the_partner_and_counts_its_area(images: torch.Tensor, seed: int) -> None:
    mixed = CutMix()(images, draws(seed))
    places = [(mixed.images[i] == j).numpy() for i, j in enumerate(mixed.partners.tolist()) if i != j]
    assert all(np.array_equal(places[0], p) for p in places)
    pasted = places[0][0]
    assert all(np.array_equal(pasted, channel) for channel in places[0])
    rows, columns = pasted.any(axis=1).nonzero()[0], pasted.any(axis=0).nonzero()[0]
    assert pasted.sum() == len(rows) * len(columns), "a rectangle"
    assert mixed.share == pytest.approx(1 - pasted.mean())


def test_cutmix_mixes_as_many_batches_as_its_probability_says(images: torch.Tensor) -> None:
    generator = draws(0)
    shares = [CutMix(probability=0.3)(images, generator).share for _ in range(400)]
    mixed = np.mean([s < 1 for s in shares])
    # Some rectangles are empty: then nothing is mixed either.
    assert 0.2 < mixed < 0.37
    assert torch.equal(CutMix(probability=0.0)(images, generator).images, images)


@pytest.mark.parametrize("kind", KINDS)
def test_mixing_is_a_function_of_the_generator_and_leaves_all_else_alone(images: torch.Tensor, kind: Mixing) -> None:
    before, state = images.clone(), torch.get_rng_state()
    first, second, other = kind(images, draws(5)), kind(images, draws(5)), kind(images, draws(6))
    assert torch.equal(first.images, second.images)
    assert not torch.equal(first.images, other.images)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


SEEN: list[Batch] = []


class Noting(CrossEntropy):
    """Cross-entropy that notes what it is given."""

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        SEEN.append(batch)
        return super().loss(model, batch)


def test_the_loss_of_regmixup_is_that_of_mixed_images_and_of_the_clean_ones(tmp_path: Path) -> None:
    SEEN.clear()
    train(job(Noting(replace(RECIPE, epochs=1, augment=(HorizontalFlip(), RegMixup(2.0))))), tmp_path, QUIET)
    mixed, clean = SEEN[::2], SEEN[1::2]
    assert len(mixed) == len(clean) == 5
    assert len({b.share for b in mixed}) > 1
    for one, other in zip(mixed, clean, strict=True):
        assert other.partners is None
        assert torch.equal(other.labels, one.labels)
        assert sorted(one.partners.tolist()) == sorted(other.labels.tolist())


def test_a_method_without_a_loss_for_mixed_labels_refuses_them() -> None:
    method: TrainingMethod = ConfBranch(replace(RECIPE, augment=(Mixup(),)))
    with pytest.raises(ConfigError, match="'ConfBranch' has no loss for mixed labels — leave Mixup"):
        job(method)


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
