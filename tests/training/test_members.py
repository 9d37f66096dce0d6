"""Networks of an ensemble: trained as networks of their own, found again, shared with runs of one network."""

from pathlib import Path

import pytest
import torch

from openbench.backbones.ensemble import Ensemble, ensemble
from openbench.core.request import Request
from openbench.errors import CheckpointError
from openbench.training.loop.weights import Trained, get_or_train

from ..logged import logged  # noqa: TID252 — the tests are no package
from .settings import CONFIG, Setting
from .training_toys import backbone, benchmark


def ensured(root: Path, seed: int = 0, members: int = 2, train: str = "auto") -> tuple[Trained, list[str]]:
    config = {**CONFIG, "seed": seed, "backbone": {"name": "ensemble", "member": {"name": "toy"}}}
    waiting = ensemble("ensemble", backbone(), members=members)
    with logged() as said:
        return get_or_train(waiting, benchmark(), config, Setting(root, train)), said


def test_members_are_the_networks_of_their_seeds(tmp_path: Path) -> None:
    found, said = ensured(tmp_path, seed=3)
    alone = [get_or_train(backbone(), benchmark(), {**CONFIG, "seed": s}, Setting(tmp_path)).backbone for s in (6, 7)]
    assert len(said) == 2, "each member is trained once, and found by runs of the network alone"
    assert isinstance(found.backbone, Ensemble)
    assert [m.digest for m in found.backbone.members] == [b.digest for b in alone]
    images = torch.rand(5, 3, 8, 8)
    mean = torch.stack([b.outputs(images, Request()).logits for b in alone]).mean(dim=0)
    torch.testing.assert_close(found.backbone.outputs(images, Request()).logits, mean, rtol=1e-4, atol=1e-5)
    assert all(str(member.checkpoint.weights) in str(found) for member in found.members)


def test_what_is_trained_is_found_and_seeds_share_no_member(tmp_path: Path) -> None:
    first, _ = ensured(tmp_path)
    again, said = ensured(tmp_path)
    assert said == []
    assert again.backbone.digest == first.backbone.digest
    other, said = ensured(tmp_path, seed=1)
    assert len(said) == 2
    digests = [member.digest for found in (first, other) for member in found.backbone.members]
    assert len(set(digests)) == 4


def test_a_missing_member_is_an_error(tmp_path: Path) -> None:
    ensured(tmp_path, members=2)
    with pytest.raises(CheckpointError, match=r"no checkpoint of toy on toys with CrossEntropy, seed 2"):
        ensured(tmp_path, members=3, train="never")
