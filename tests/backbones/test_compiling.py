"""Passes that torch's compiler makes faster."""

import shutil
from collections.abc import Callable
from threading import Thread, get_ident
from time import sleep

import pytest
import torch
from torch import Tensor, nn

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.cifar import resnet
from openbench.backbones.device import whole_parts
from openbench.backbones.ensemble import Ensemble
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request
from openbench.errors import ConfigError

needs_compiler = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="a C++ compiler")
READ = Request(layers=("stage1", "stage2"), pool="mean")


class Nested(nn.Module):
    """A stem, blocks in a list, one of which is read, and a classifier inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()) for _ in range(3))
        self.flat = nn.Flatten()
        self.tail = nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.tail(self.flat(x))
        return logits


def nested(compile: bool, stages: dict[str, str] | None = None) -> NetworkBackbone:
    """A backbone with random weights, the same for each call."""
    anatomy = Anatomy("tail.2", stages or {"stage1": "stem", "stage2": "blocks.1"})
    made = NetworkBackbone("nested", "nested", Nested, lambda _: anatomy, preprocess=Preprocess(4, 4), compile=compile)
    return made.load_state(made.network.state_dict(), "its own")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Stands in for the compiler; notes whose forward it was handed, and hands it back, doubled."""
    seen: list[nn.Module] = []

    def doubled(forward, **how):
        seen.append(forward.__self__)
        return lambda *arguments: 2 * forward(*arguments)

    monkeypatch.setattr(torch, "compile", doubled)
    return seen


def test_parts_are_the_largest_inside_which_nothing_is_read() -> None:
    module = Nested()
    anatomy = Anatomy("tail.2", {"stage1": "stem.0", "stage2": "blocks.1"})
    assert whole_parts(module, anatomy) == [module.stem[0], *module.blocks, module.tail[0]]
    assert whole_parts(module, Anatomy("tail.2"))[0] is module.stem


def test_passes_run_through_the_compiled_parts_which_are_made_once(eager: list[nn.Module]) -> None:
    images = torch.rand(3, 3, 4, 4)
    backbone, plain = nested(compile=True), nested(compile=False)
    found = backbone.outputs(images, READ)
    # What the compiler returned was run, and what hooks read comes after it.
    torch.testing.assert_close(found.maps["stage1"], 2 * plain.outputs(images, READ).maps["stage1"])
    backbone.outputs(images[:2], READ)
    assert eager == [backbone.network.stem, *backbone.network.blocks, backbone.network.tail[0]]
    assert not any("forward" in vars(part) for part in backbone.network.modules())


def test_threads_take_turns_in_a_compiled_network(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, inside = nested(compile=True), []

    def compiler(forward: Callable[[Tensor], Tensor], **_: object) -> Callable[[Tensor], Tensor]:
        def noted(x: Tensor) -> Tensor:
            inside.append(get_ident())
            sleep(0.001)  # another thread's turn, if it were not for the lock
            return forward(x)

        return noted

    monkeypatch.setattr(torch, "compile", compiler)
    threads = [Thread(target=backbone.outputs, args=(torch.rand(1, 3, 4, 4), Request())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inside) == 15  # five parts, each compiled in every pass
    assert all(len(set(inside[start : start + 5])) == 1 for start in (0, 5, 10))


def test_compiled_features_have_an_entry_of_their_own_in_the_cache() -> None:
    assert nested(compile=True).digest != nested(compile=False).digest
    given = resnet("tiny", "resnet8", num_classes=4, preprocess=Preprocess(8, 8), compile=True)
    assert given.replaced(given.network, given.anatomy, "another").compile


def test_an_ensemble_of_compiled_members_is_refused() -> None:
    members = [nested(compile=True, stages={"stage1": "stem"}) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"a compiled member .'nested'. .* leave backbone.member.compile"):
        Ensemble("two", members)


class Short(nn.Module):
    """One part, of which one kernel is made, and a classifier: compiling takes seconds for each kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(48, 4), nn.ReLU())
        self.fc = nn.Linear(4, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.stem(images.flatten(1)))
        return logits


@needs_compiler
@pytest.mark.filterwarnings("ignore")
def test_compiled_outputs_are_the_uncompiled_up_to_rounding_at_any_batch_size() -> None:
    def made(compile: bool) -> NetworkBackbone:
        backbone = NetworkBackbone(
            "short", "short", Short, lambda _: Anatomy("fc"), preprocess=Preprocess(4, 4), compile=compile
        )
        return backbone.load_state(backbone.network.state_dict(), "its own")

    images, compiled, plain = torch.rand(7, 3, 4, 4), made(compile=True), made(compile=False)
    for count in (7, 3):
        found, wanted = compiled.outputs(images[:count], Request()), plain.outputs(images[:count], Request())
        torch.testing.assert_close(found.logits, wanted.logits)
        torch.testing.assert_close(found.features, wanted.features)
