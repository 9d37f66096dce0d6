"""The uniform surface over a module: state kept, passes counted, digests that change with what they cover."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from openbench.backbones.anatomy import Anatomy, choose_stages
from openbench.backbones.cifar import resnet
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.core.request import Perturb, Request
from openbench.errors import CheckpointError, ConfigError

PREPROCESS = Preprocess(8, 8)


def untrained(**changes: object) -> NetworkBackbone:
    given: dict[str, object] = {"model": "resnet8", "num_classes": 4, "preprocess": PREPROCESS}
    return resnet("tiny", **{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
def backbone() -> NetworkBackbone:
    tiny = untrained()
    return tiny.load_state(tiny.module().state_dict(), "own")


def test_untrained_backbone_has_no_digest() -> None:
    with pytest.raises(CheckpointError, match=r"random weights.*openbench train"):
        _ = untrained().digest


def test_loading_a_file_makes_it_trained(tmp_path: Path) -> None:
    source = untrained().initialise(5)
    path = tmp_path / "w.safetensors"
    save_file({k: v.contiguous() for k, v in source.module().state_dict().items()}, path)
    loaded = untrained().load(path)
    x = torch.randn(2, 3, 8, 8)
    assert loaded.trained
    torch.testing.assert_close(loaded.outputs(x, Request()).logits, source.outputs(x, Request()).logits)


@pytest.mark.parametrize(
    "change",
    [
        {"preprocess": replace(PREPROCESS, mean=(0.5, 0.5, 0.5))},
        {"precision": "bf16"},
        {"num_classes": 5},
    ],
)
def test_digest_changes_with_what_it_covers(backbone: NetworkBackbone, change: dict[str, object]) -> None:
    other = untrained(**change)
    assert other.load_state(other.module().state_dict(), "own").digest != backbone.digest


def test_digest_changes_with_one_weight(backbone: NetworkBackbone) -> None:
    state = {k: v.clone() for k, v in backbone.module().state_dict().items()}
    before = backbone.digest
    state["bn1.running_var"][3] += 1e-6
    assert backbone.load_state(state, "changed").digest != before


def test_digest_ignores_name_layout_and_counters(backbone: NetworkBackbone) -> None:
    state = {k: v.contiguous() for k, v in backbone.module().state_dict().items()}
    state["bn1.num_batches_tracked"] = torch.tensor(77)
    other = resnet("other", "resnet8", num_classes=4, preprocess=Preprocess(8, 8, mean=list(PREPROCESS.mean)))  # type: ignore[arg-type]
    assert other.load_state(state, "same").digest == backbone.digest


def test_initialise_depends_on_the_seed_alone_and_leaves_the_global_generator() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = untrained().initialise(7)
    assert torch.equal(torch.rand(3), expected)
    assert first.weights_sha256 == untrained().initialise(7).weights_sha256
    assert first.weights_sha256 != untrained().initialise(8).weights_sha256


def test_passes_count_images_and_perturbed_ones_twice(backbone: NetworkBackbone) -> None:
    x = torch.randn(3, 3, 8, 8)
    backbone.outputs(x, Request())
    assert backbone.passes == 3
    backbone.outputs(x, Request(perturb=Perturb()))
    assert backbone.passes == 9


def test_weights_that_are_installed_are_neither_trained_on_nor_in_training_mode(backbone: NetworkBackbone) -> None:
    state = {name: value.clone() for name, value in backbone.network.state_dict().items()}
    for install in (lambda: backbone.initialise(3), lambda: backbone.load_state(state, "own")):
        backbone.module().train()
        install()
        assert [name for name, part in backbone.network.named_modules() if part.training] == []
        assert [name for name, value in backbone.network.named_parameters() if value.requires_grad] == []


def test_outputs_leave_a_training_module_training(backbone: NetworkBackbone) -> None:
    module = backbone.module().train()
    module.get_submodule("bn1").eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    outputs = backbone.outputs(torch.randn(4, 3, 8, 8), Request(perturb=Perturb()))
    assert not outputs.logits.requires_grad
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert [name for name, part in module.named_modules() if not part.training] == ["bn1"]
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_unknown_layer_names_the_nearest_and_all(backbone: NetworkBackbone) -> None:
    with pytest.raises(ConfigError, match=r"no layer 'stage4'.*did you mean.*stage1, stage2, stage3"):
        backbone.outputs(torch.randn(1, 3, 8, 8), Request(layers=("stage4",)))


def test_network_without_a_linear_classifier_is_refused() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten())

    with pytest.raises(ConfigError, match=r"'0' is Conv2d, not nn\.Linear"):
        NetworkBackbone("bad", "bad", make, lambda _: Anatomy("0"), preprocess=PREPROCESS)


def test_stages_end_where_the_resolution_changes() -> None:
    modules = [("stem", 112), ("a", 56), ("b", 56), ("c", 28), ("d", 14), ("e", 14), ("f", 7)]
    assert choose_stages(modules) == {"stage1": "b", "stage2": "c", "stage3": "e", "stage4": "f"}
    assert choose_stages(modules[:4]) == {"stage1": "stem", "stage2": "b", "stage3": "c"}


def test_stages_are_equal_groups_of_blocks() -> None:
    twelve = [(f"b{i}", 1) for i in range(12)]
    assert list(choose_stages(twelve).values()) == ["b2", "b5", "b8", "b11"]
    assert list(choose_stages(twelve[:3]).values()) == ["b0", "b1", "b2"]
    assert list(choose_stages(twelve[:6]).values()) == ["b1", "b2", "b4", "b5"]
