"""Networks that are trained from released weights: which of their weights these are."""

import pytest
import torch
from torch import nn

from openbench.backbones.cifar import resnet
from openbench.backbones.network import NetworkBackbone, finetuned
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request
from openbench.errors import ConfigError

SMALL = Preprocess(8, 8)
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def released(seed: int = 5) -> NetworkBackbone:
    source = resnet("tiny", model="resnet8", num_classes=4, preprocess=SMALL).initialise(seed)
    return source.load_state(source.module().state_dict(), "own")


def test_all_weights_but_the_heads_are_those_it_starts_from_whatever_the_seed() -> None:
    start = released()
    tuned = finetuned("tuned", start, num_classes=6, preprocess=SMALL)
    features = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}))
    for seed in (0, 7):
        found = tuned.initialise(seed).outputs(IMAGES, features)
        torch.testing.assert_close(found.features, start.outputs(IMAGES, features).features)
        assert found.logits.shape == (3, 6)
    assert not tuned.trained
    assert tuned.head.weight.shape == (6, start.feature_dim)


def test_the_head_is_drawn_from_the_seed_as_torch_draws_it() -> None:
    tuned = finetuned("tuned", released(), num_classes=6, preprocess=SMALL)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        drawn = nn.Linear(tuned.feature_dim, 6)
    torch.testing.assert_close(tuned.initialise(3).head.weight, drawn.weight.detach())
    assert not torch.equal(tuned.initialise(4).head.weight, drawn.weight)


def test_other_starting_weights_are_another_architecture() -> None:
    """The name of a checkpoint is made of the architecture: trainings from other weights must not share one."""
    first, second = (finetuned("t", released(seed), num_classes=6, preprocess=SMALL) for seed in (5, 6))
    assert first.architecture != second.architecture
    assert first.architecture == finetuned("t", released(5), num_classes=6, preprocess=SMALL).architecture


def test_a_start_without_weights_is_refused() -> None:
    untrained = resnet("tiny", model="resnet8", num_classes=4, preprocess=SMALL)
    with pytest.raises(ConfigError, match="start is tiny, without weights"):
        finetuned("tuned", untrained, num_classes=6, preprocess=SMALL)
    with pytest.raises(ConfigError, match="num_classes or preprocess is null"):
        finetuned("tuned", released(), num_classes=6)


def test_with_its_head_kept_it_is_the_network_it_starts_from_and_waits_for_training() -> None:
    start = released()
    kept = finetuned("tuned", start, head="kept", num_classes=4, preprocess="start")
    for seed in (0, 7):
        logits = kept.initialise(seed).outputs(IMAGES, Request()).logits
        torch.testing.assert_close(logits, start.outputs(IMAGES, Request()).logits)
    assert (kept.trained, kept.starts_trained, kept.preprocess) == (False, True, start.preprocess)
    new = finetuned("tuned", start, num_classes=4, preprocess=SMALL)
    assert not new.starts_trained
    assert new.architecture != kept.architecture
