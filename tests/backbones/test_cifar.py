"""CIFAR ResNets: shapes, parameter counts, released keys and an independent reading of the architecture."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.cifar import SPECS, CifarResNet, Subsample


@pytest.mark.parametrize(
    ("model", "parameters"), [("resnet20", 269722), ("resnet32", 464154), ("resnet44", 658586), ("resnet56", 853018)]
)
def test_he_nets_have_the_published_number_of_parameters(model: str, parameters: int) -> None:
    net = CifarResNet(SPECS[model], 10)
    assert sum(p.numel() for p in net.parameters()) == parameters


def plain_resnet18(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """The 3×3-stem ResNet-18 written out with functions on a state dict; no module of the package is used."""

    def norm(y: Tensor, key: str) -> Tensor:
        stats = [state[f"{key}.{k}"] for k in ("running_mean", "running_var", "weight", "bias")]
        return functional.batch_norm(y, *stats, training=False)

    y = functional.relu(norm(functional.conv2d(x, state["conv1.weight"], padding=1), "bn1"))
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            key, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            z = functional.conv2d(y, state[f"{key}.conv1.weight"], stride=stride, padding=1)
            z = functional.relu(norm(z, f"{key}.bn1"))
            z = norm(functional.conv2d(z, state[f"{key}.conv2.weight"], padding=1), f"{key}.bn2")
            if stride == 2:
                y = norm(functional.conv2d(y, state[f"{key}.shortcut.0.weight"], stride=2), f"{key}.shortcut.1")
            y = functional.relu(y + z)
    return functional.avg_pool2d(y, 4).flatten(1) @ state["fc.weight"].T + state["fc.bias"]


def scrambled(net: nn.Module) -> nn.Module:
    """Batch norms with statistics far from their start, so that a swapped or skipped one shows."""
    generator = torch.Generator().manual_seed(3)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor in (part.running_mean, part.running_var, part.weight.data, part.bias.data):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return net.eval()


def test_resnet18_computes_what_its_architecture_says() -> None:
    net = scrambled(CifarResNet(SPECS["resnet18"], 10)).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(net(x), plain_resnet18(net.state_dict(), x), rtol=1e-10, atol=1e-10)


def test_subsampling_shortcut_takes_every_second_pixel_and_pads_zero_channels_on_both_sides() -> None:
    x = torch.arange(2 * 16 * 4 * 4, dtype=torch.float32).reshape(2, 16, 4, 4) + 1
    y = Subsample(16, 2)(x)
    expected = np.zeros((2, 32, 2, 2), np.float32)
    expected[:, 8:24] = x.numpy()[:, :, ::2, ::2]
    np.testing.assert_array_equal(y.numpy(), expected)
