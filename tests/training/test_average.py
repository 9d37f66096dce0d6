from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openbench.digest import digest
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import EMA, accuracy_of, train

from .training_toys import QUIET, RECIPE, ToyEntropy, ToyNet, job

AVERAGED = replace(RECIPE, ema=0.9)


def walk(model: torch.nn.Module, steps: int):
    """Move every weight and statistic of a network at random, step by step."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        with torch.no_grad():
            for value in model.state_dict().values():
                value.add_(torch.randn(value.shape, generator=generator).to(value.dtype))
        yield


def test_average_follows_its_recursion() -> None:
    model, decay = ToyNet(), 0.8
    average = EMA(model, decay)
    expected = {k: v.clone().double() for k, v in model.state_dict().items() if v.is_floating_point()}
    for step, _ in enumerate(walk(model, 60), start=1):
        average.update()
        d = min(decay, (1 + step) / (10 + step))
        for name, mean in expected.items():
            mean.mul_(d).add_(model.state_dict()[name].double(), alpha=1 - d)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with average.in_place():
        for name, mean in expected.items():
            torch.testing.assert_close(model.state_dict()[name].double(), mean, rtol=1e-5, atol=1e-5)
        assert torch.equal(model.bn.num_batches_tracked, before["bn.num_batches_tracked"])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_average_is_what_is_validated_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(model, *arguments):
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return accuracy_of(model, *arguments)

    monkeypatch.setattr(loop, "accuracy_of", noted)
    train(job(ToyEntropy(AVERAGED)), tmp_path, QUIET)
    last = load_file(tmp_path / "last.safetensors")
    assert last.keys() == seen[-1].keys()
    assert all(torch.equal(last[name], seen[-1][name]) for name in last)


def test_averaging_does_not_disturb_the_steps(tmp_path: Path) -> None:
    plain = train(job(), tmp_path / "plain", QUIET)
    averaged = train(job(ToyEntropy(AVERAGED)), tmp_path / "averaged", QUIET)
    assert [row.loss for row in averaged.curve] == [row.loss for row in plain.curve]
    assert averaged.files != plain.files


def test_a_recipe_without_average_keeps_its_name_and_one_with_has_another() -> None:
    older = {f: getattr(RECIPE, f) for f in RECIPE.__dataclass_fields__ if f != "ema"}
    assert digest(RECIPE) == digest({"__type__": "Recipe", **older})
    assert digest(AVERAGED) != digest(RECIPE)
