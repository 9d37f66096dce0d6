"""Passes in 16 bits: what they round, what stays float32, and that they are told apart."""

import pytest
import torch

from openbench.backbones.cifar import resnet
from openbench.core.preprocess import Preprocess
from openbench.core.request import Perturb, Request
from openbench.errors import ConfigError

IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
WITH_MAPS = Request(layers=("stage1",), pool="mean")


def network(precision):
    made = resnet("own", "resnet8", num_classes=4, preprocess=Preprocess(16, 16), precision=precision)
    return made.load_state({k: v.clone() for k, v in made.initialise(3).module().state_dict().items()}, "own")


def test_features_are_rounded_to_16_bits_and_handed_on_as_float32():
    exact, rounded = (network(p).outputs(IMAGES, WITH_MAPS) for p in ("fp32", "bf16"))
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


def test_features_of_another_precision_are_not_taken_for_the_same():
    assert len({network(p).digest for p in ("fp32", "tf32", "bf16", "fp16")}) == 4


def test_fp16_is_refused_on_a_cpu():
    with pytest.raises(ConfigError, match=r"precision=fp16 needs a GPU — choose fp32, tf32 or bf16"):
        network("fp16").outputs(IMAGES, Request())


def test_methods_that_run_the_network_run_it_in_float32():
    with torch.no_grad(), network("bf16").frozen() as module, network("fp32").frozen() as exact:
        assert torch.equal(module(IMAGES), exact(IMAGES))
