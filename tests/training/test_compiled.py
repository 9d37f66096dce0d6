import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.network import NetworkBackbone
from openbench.core.request import Role
from openbench.training.loop._loop import compiled, train

from .training_toys import PREPROCESS, QUIET, RECIPE, ToyEntropy, ToyNet, ToyPrototypes, job, split

needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="a C++ compiler")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stands in for the compiler; notes whose forward it was handed, and hands it back."""
    seen: list[object] = []

    def compile_nothing(forward, **options):
        seen.append(forward.__self__)
        return lambda *arguments: forward(*arguments)

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return seen


def test_all_parts_with_weights_but_the_classifier_are_compiled(eager: list[object]) -> None:
    model = ToyNet()
    with compiled(model):
        assert eager == [model.conv, model.bn]
        assert "forward" in vars(model.conv)
    assert not any("forward" in vars(part) for part in model.modules())


def test_methods_that_read_features_by_hooks_train_as_before(tmp_path: Path, eager: list[object]) -> None:
    plain = train(job(ToyPrototypes()), tmp_path / "plain", QUIET)
    assert not eager
    again = train(job(ToyPrototypes()), tmp_path / "again", replace(QUIET, compile=True))
    assert eager
    assert again.files == plain.files


@pytest.mark.filterwarnings("ignore")
def test_every_part_is_specialised_by_itself(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Parts in training and evaluation at two batch sizes are more versions than one function may have."""
    whole = torch.compile
    # Everything but the making of machine code.
    monkeypatch.setattr(torch, "compile", lambda forward, options: whole(forward, backend="eager"))
    # Stages of one class, and of different sizes: what was compiled for one does not do for another.
    stages = [nn.Sequential(nn.Conv2d(n, n + 1, 1), nn.BatchNorm2d(n + 1)) for n in (3, 4, 5)]
    network = nn.Sequential(*stages, nn.Flatten(), nn.Linear(24, 4))
    torch.compiler.reset()
    with compiled(network):
        for _ in range(2):
            for n in (6, 5):
                network.train()(torch.zeros(n, 3, 2, 2))
                with torch.no_grad():
                    network.eval()(torch.zeros(n, 3, 2, 2))
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []


class Drawing(ToyNet):
    """With dropout beside the convolution, in one part."""

    def __init__(self, dropout: float) -> None:
        super().__init__(dropout)
        self.conv, self.bn = nn.Sequential(self.conv, nn.Dropout(0.5)), nn.Identity()


@needs_compiler
@pytest.mark.filterwarnings("ignore")
def test_compiled_training_gives_the_weights_of_the_uncompiled_up_to_rounding(tmp_path: Path) -> None:
    # Batches of one size, in training and in validation: each other size is compiled anew.
    sizes = {"id_train": split(Role.ID_TRAIN, 32), "id_val": split(Role.ID_VAL, 16)}
    # A part with dropout: compiled, it draws what the uncompiled draws.
    network = partial(Drawing, 0.2)
    own = NetworkBackbone("toy", "drawing", network, lambda _: Anatomy("fc"), preprocess=PREPROCESS)
    made = job(ToyEntropy(replace(RECIPE, epochs=1)), backbone=own, **sizes)
    plain = train(made, tmp_path / "plain", QUIET)
    torch.compiler.reset()
    fast = train(made, tmp_path / "fast", replace(QUIET, compile=True))
    assert [row.loss for row in fast.curve] == pytest.approx([row.loss for row in plain.curve], rel=1e-4)
    theirs = load_file(tmp_path / "plain" / "last.safetensors")
    for name, value in load_file(tmp_path / "fast" / "last.safetensors").items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=1e-4)
