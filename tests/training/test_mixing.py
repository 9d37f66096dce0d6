from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import beta, kstest

from openbench import _compat
from openbench.errors import ConfigError
from openbench.training.augment.augmentations import (
    CutMix,
    HorizontalFlip,
    JensenShannon,
    Mixing,
    Mixup,
    RegMixup,
    draw_share,
)
from openbench.training.base import Batch, TrainingMethod
from openbench.training.loop._loop import Session, train
from openbench.training.loop.distributed import ALONE
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.methods.heads import ConfBranch

from .training_toys import QUIET, RECIPE, ToyEntropy, draws, job

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


def test_the_loss_over_versions_is_added_and_with_cross_entropy_is_that_of_timm(tmp_path: Path) -> None:
    recipe = replace(RECIPE, augment=(*RECIPE.augment, JensenShannon(HorizontalFlip(1.0), weight=1e4)))
    session = Session(job(ToyEntropy(recipe)), tmp_path, QUIET, None, ALONE)
    _, batches = next(session._batches(0))
    images, model = batches[0].images, session.prepared.eval()
    theirs = _compat.library("timm.loss").JsdCrossEntropy(num_splits=3, alpha=1e4, smoothing=0)
    expected = theirs(model(torch.cat([images, images.flip(3), images.flip(3)])), batches[0].labels.repeat(3))
    torch.testing.assert_close(session.objective(batches), expected)
