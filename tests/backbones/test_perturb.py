"""The input-gradient step against autograd written by hand, in double precision, and against the closed form."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.backbones.network import perturbed
from openbench.core.request import Perturb

STD = (0.2, 0.3, 0.4)


def by_autograd(net: nn.Module, x: Tensor, step: Perturb) -> tuple[Tensor, Tensor]:
    """x̃ and ∇ₓ by the textbook: cross-entropy, backward, read x.grad."""
    x = x.clone().requires_grad_(True)
    z = net(x)
    functional.cross_entropy(z / step.temperature, z.argmax(1), reduction="sum").backward()
    g = x.grad
    sign = g.sign() + (g == 0)
    if step.kind == "peak":
        for i in range(len(g)):
            keep = torch.unravel_index(g[i].abs().argmax(), g[i].shape)
            kept = sign[i][keep].clone()
            sign[i] = 0
            sign[i][keep] = kept
    moved = torch.stack([x[:, k] - step.epsilon * sign[:, k] / STD[k] for k in range(3)], dim=1)
    return moved.detach(), g


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return CifarResNet(SPECS["resnet8"], 5).double().eval()


@pytest.mark.parametrize("kind", ["sign", "peak"])
@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_step_equals_autograd(net: nn.Module, temperature: float, kind: str) -> None:
    step = Perturb(temperature, 0.0028, kind)  # type: ignore[arg-type]
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    expected, _ = by_autograd(net, x, step)
    torch.testing.assert_close(perturbed(net, x, STD, step), expected, rtol=0, atol=1e-12)


def linear(weight: Tensor) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(weight.shape[1], len(weight), bias=False))
    net[1].weight.data = weight
    return net.requires_grad_(False)


def test_step_is_right_in_float32_where_the_softmax_rounds_to_one() -> None:
    """At logits (60, 0, 0) and T=1 float32 has p_ŷ = 1 and the plain gradient is noise; w₂ + w₃ − 2w₁ is the truth."""
    weight = torch.tensor([[60.0, 1.0, -1.0], [0.0, 1.5, 2.0], [0.0, 1.5, 2.0]])
    x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    exact = torch.sign(0.5 * (weight[1] + weight[2]) - weight[0])
    moved = perturbed(linear(weight), x, (1.0, 1.0, 1.0), Perturb(1.0, 0.25))
    torch.testing.assert_close((x - moved).flatten(), 0.25 * exact)


def test_zero_gradient_counts_as_positive() -> None:
    weight = torch.tensor([[1.0, 7.0, 0.0], [0.0, 7.0, 0.0]])
    x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    moved = perturbed(linear(weight), x, (1.0, 1.0, 1.0), Perturb(1000.0, 0.5))
    # ∇ = p₂(w₂ − w₁) = (−, 0, 0): the first element rises, the two others fall.
    torch.testing.assert_close((moved - x).flatten(), torch.tensor([0.5, -0.5, -0.5]))


def test_parameters_get_no_gradients_and_images_stay(net: nn.Module) -> None:
    net.zero_grad(set_to_none=True)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before = x.clone()
    perturbed(net, x, STD, Perturb())
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(x, before)


@pytest.mark.parametrize("share", [0.05, 1.0])
def test_flat_moves_the_least_sensitive_elements_towards_the_largest_logit(net: nn.Module, share: float) -> None:
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    x = images.clone().requires_grad_(True)
    net(x).max(dim=1).values.sum().backward()
    expected = images.clone()
    for i in range(4):
        order = x.grad[i].flatten().abs().argsort()[: int(share * 192)]
        for at in order:
            expected[i].view(-1)[at] += 0.5 * x.grad[i].flatten()[at].sign()
    found = perturbed(net, images, STD, Perturb(1.0, 0.5, "flat", share))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_flat_leaves_elements_without_gradient_where_they_are() -> None:
    weight = torch.tensor([[1.0, 7.0, 0.0], [0.0, 7.0, 0.0]])
    x = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    moved = perturbed(linear(weight), x, (0.5, 0.5, 0.5), Perturb(1.0, 0.5, "flat", 1.0))
    torch.testing.assert_close((moved - x).flatten(), torch.tensor([0.5, 0.5, 0.0]))
