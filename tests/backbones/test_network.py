"""The uniform surface over a module: state kept, passes counted, digests, passes in 16 bits, networks to train on."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from openbench.backbones.anatomy import Anatomy, choose_stages
from openbench.backbones.cifar import resnet
from openbench.backbones.network import NetworkBackbone, finetuned
from openbench.backbones.rows import Identity
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Perturb, Request
from openbench.errors import ConfigError

PREPROCESS = Preprocess(8, 8)
IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def untrained(**changes: object) -> NetworkBackbone:
    given: dict[str, object] = {"model": "resnet8", "num_classes": 4, "preprocess": PREPROCESS}
    return resnet("tiny", **{**given, **changes})  # type: ignore[arg-type]


def released(seed: int = 5, **changes: object) -> NetworkBackbone:
    source = untrained(**changes).initialise(seed)
    return source.load_state(source.module().state_dict(), "own")


@pytest.fixture
def backbone() -> NetworkBackbone:
    return released(0)


def test_digest_changes_with_what_it_covers(backbone: NetworkBackbone) -> None:
    changes = [{"precision": precision} for precision in ("tf32", "bf16", "fp16")]
    changes += [{"preprocess": replace(PREPROCESS, mean=(0.5, 0.5, 0.5))}, {"num_classes": 5}]
    assert len({released(0, **change).digest for change in changes} | {backbone.digest}) == 6
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


def network(precision):
    return released(3, precision=precision)


def test_features_are_rounded_to_16_bits_and_handed_on_as_float32():
    exact, rounded = (network(p).outputs(IMAGES, Request(layers=("stage1",), pool="mean")) for p in ("fp32", "bf16"))
    for name in ("features", "logits"):
        before, after = getattr(exact, name), getattr(rounded, name)
        assert after.dtype == torch.float32
        assert not torch.equal(before, after)
        # bfloat16 keeps 8 bits: 2⁻⁸ of each value, some times over in eight layers.
        assert (before - after).norm() < 0.05 * before.norm()
    assert rounded.maps["stage1"].dtype == torch.float32


def test_logits_are_those_of_the_head_in_float32():
    backbone = network("bf16")
    made = backbone.outputs(IMAGES, Request())
    expected = made.features.double() @ backbone.head.weight.double().T + backbone.head.bias.double()
    torch.testing.assert_close(made.logits.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_input_step_takes_float32_gradients():
    step = Request(perturb=Perturb(temperature=10.0, epsilon=0.01))
    seen = []

    def outputs(backbone):
        handle = backbone.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
        backbone.outputs(IMAGES, step)
        handle.remove()
        return seen[-1]  # the images after the step

    assert torch.equal(outputs(network("bf16")), outputs(network("fp32")))


def test_fp16_is_refused_on_a_cpu():
    with pytest.raises(ConfigError, match=r"precision=fp16 needs a GPU — choose fp32, tf32 or bf16"):
        network("fp16").outputs(IMAGES, Request())


def test_methods_that_run_the_network_run_it_in_float32():
    with torch.no_grad(), network("bf16").frozen() as module, network("fp32").frozen() as exact:
        assert torch.equal(module(IMAGES), exact(IMAGES))


def test_all_weights_but_the_heads_are_those_it_starts_from_whatever_the_seed() -> None:
    start = released()
    tuned = finetuned("tuned", start, num_classes=6, preprocess=PREPROCESS)
    features = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}))
    for seed in (0, 7):
        found = tuned.initialise(seed).outputs(IMAGES, features)
        torch.testing.assert_close(found.features, start.outputs(IMAGES, features).features)
        assert found.logits.shape == (6, 6)
    assert not tuned.trained
    assert tuned.head.weight.shape == (6, start.feature_dim)


def test_the_head_is_drawn_from_the_seed_as_torch_draws_it() -> None:
    tuned = finetuned("tuned", released(), num_classes=6, preprocess=PREPROCESS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        drawn = nn.Linear(tuned.feature_dim, 6)
    torch.testing.assert_close(tuned.initialise(3).head.weight, drawn.weight.detach())
    assert not torch.equal(tuned.initialise(4).head.weight, drawn.weight)


def test_other_starting_weights_are_another_architecture() -> None:
    """The name of a checkpoint is made of the architecture: trainings from other weights must not share one."""
    first, second = (finetuned("t", released(seed), num_classes=6, preprocess=PREPROCESS) for seed in (5, 6))
    assert first.architecture != second.architecture
    assert first.architecture == finetuned("t", released(5), num_classes=6, preprocess=PREPROCESS).architecture


def test_a_start_without_weights_is_refused() -> None:
    with pytest.raises(ConfigError, match="start is tiny, without weights"):
        finetuned("tuned", untrained(), num_classes=6, preprocess=PREPROCESS)
    with pytest.raises(ConfigError, match="num_classes or preprocess is null"):
        finetuned("tuned", released(), num_classes=6)


def test_with_its_head_kept_it_is_the_network_it_starts_from_and_waits_for_training() -> None:
    start = released()
    kept = finetuned("tuned", start, head="kept", num_classes=4, preprocess="start")
    for seed in (0, 7):
        logits = kept.initialise(seed).outputs(IMAGES, Request()).logits
        torch.testing.assert_close(logits, start.outputs(IMAGES, Request()).logits)
    assert (kept.trained, kept.starts_trained, kept.preprocess) == (False, True, start.preprocess)
    new = finetuned("tuned", start, num_classes=4, preprocess=PREPROCESS)
    assert not new.starts_trained
    assert new.architecture != kept.architecture


def test_rows_come_out_as_features_with_one_logit_of_zero():
    backbone, rows = Identity("identity", Preprocess(8, 8), 3), torch.arange(12.0).view(4, 3)
    found = backbone.outputs(rows, Request())
    assert torch.equal(found.features, rows)
    assert torch.equal(found.logits, torch.zeros(4, 1))
    assert torch.equal(backbone.head(rows), torch.zeros(4, 1))
    assert backbone.passes == 4
    backbone.outputs(rows[:3], Request())
    assert backbone.passes == 7


@pytest.mark.parametrize("request_", [Request(layers=("stage1",)), Request(perturb=Perturb(1.0, 0.1))], ids=str)
def test_maps_and_gradients_are_refused(request_):
    with pytest.raises(ConfigError, match="neither maps nor gradients"):
        Identity("identity", Preprocess(8, 8), 3).outputs(torch.zeros(4, 3), request_)
