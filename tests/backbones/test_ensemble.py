"""Several networks as one: what comes out is the members' average, and linear in their features."""

import pytest
import torch
from torch import Tensor

from openbench.backbones.cifar import resnet
from openbench.backbones.network import MEMBERS, Ensemble, NetworkBackbone, ensemble
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request
from openbench.errors import CheckpointError, ConfigError

PREPROCESS = Preprocess(8, 8, std=(0.2, 0.3, 0.4))
EACH = Request(fields=frozenset({Field.MAPS, Field.LOGITS}), layers=(MEMBERS,))


def network(seed: int | None, classes: int = 4) -> NetworkBackbone:
    """A ResNet-8 with the random weights of a seed; without one it waits for training."""
    made = resnet("toy", "resnet8", num_classes=classes, preprocess=PREPROCESS)
    return made if seed is None else made.initialise(seed).load_state(made.module().state_dict(), "random")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def three() -> Ensemble:
    return Ensemble("three", [network(seed) for seed in range(3)])


def test_logits_are_the_mean_and_features_stand_side_by_side(three: Ensemble, images: Tensor) -> None:
    alone = [network(seed).outputs(images, Request()) for seed in range(3)]
    found = three.outputs(images, EACH)
    torch.testing.assert_close(found.logits, torch.stack([o.logits for o in alone]).mean(dim=0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.features, torch.cat([o.features for o in alone], dim=1), rtol=1e-4, atol=1e-5)
    for m, outputs in enumerate(alone):
        torch.testing.assert_close(found.maps[MEMBERS][:, m, :, 0], outputs.logits, rtol=1e-4, atol=1e-5)


def test_the_head_makes_the_logits_of_the_features(three: Ensemble, images: Tensor) -> None:
    found = three.outputs(images, Request())
    torch.testing.assert_close(three.head(found.features), found.logits)
    assert (three.feature_dim, three.num_classes, three.layers) == (3 * 64, 4, (MEMBERS,))
    assert three.trained


def test_every_member_counts_for_the_digest_and_nothing_else(three: Ensemble) -> None:
    assert Ensemble("other name", [network(seed) for seed in range(3)]).digest == three.digest
    others = ([0, 1], [0, 1, 3], [0, 1, 2, 3], [1, 0, 2])
    digests = {Ensemble("three", [network(seed) for seed in seeds]).digest for seeds in others}
    assert len(digests | {three.digest}) == 5
    assert three.digest not in {network(seed).digest for seed in range(3)}


def test_it_waits_for_its_members() -> None:
    waiting = ensemble("ensemble", network(None), members=3)
    assert not waiting.trained
    assert waiting.name == "ensemble3_toy"
    assert len(waiting.members) == 3
    with pytest.raises(CheckpointError, match="random weights"):
        _ = waiting.digest


def test_files_of_weights_make_the_members(tmp_path, images: Tensor) -> None:
    files = []
    for seed in range(2):
        files.append(str(tmp_path / f"{seed}.pt"))
        torch.save(network(seed).module().state_dict(), files[-1])
    found = ensemble("ensemble", network(None), members=2, weights=files)
    assert found.trained
    assert found.digest == Ensemble("two", [network(seed) for seed in range(2)]).digest


def test_what_makes_no_ensemble_is_refused() -> None:
    with pytest.raises(ConfigError, match="comes with weights"):
        ensemble("ensemble", network(0))
    with pytest.raises(ConfigError, match="1 files of weights for 2 members"):
        ensemble("ensemble", network(None), members=2, weights=["a.pt"])
