import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from openbench.core.features import Head
from openbench.methods.shaping import SCALE
from openbench.training.base import features_and_logits
from openbench.training.methods.cross_entropy import ISH, shaped_linear

from .training_toys import CLASSES, FEATURES, backbone, batch

N, D, C = 9, 20, 4


def problem(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, nn.Linear]:
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(D, C, dtype=dtype)
    with torch.no_grad():
        head.weight.copy_(torch.randn(C, D, generator=generator))
    features = torch.randn(N, D, generator=generator, dtype=dtype).relu().requires_grad_(True)
    return features, torch.arange(N) % C, head


def test_weight_learns_from_the_shaped_features() -> None:
    """∂CE/∂W = (p − y)ᵀ s / n, by hand."""
    features, labels, head = problem()
    shaped = torch.rand(N, D, dtype=torch.float64)
    loss = functional.cross_entropy(shaped_linear(features, shaped, head), labels)
    (found,) = torch.autograd.grad(loss, head.weight)
    p = torch.softmax(head(features).detach(), dim=1).numpy() - np.eye(C)[labels]
    np.testing.assert_allclose(found.numpy(), p.T @ shaped.numpy() / N, rtol=1e-10)


@pytest.mark.parametrize("percentile", [85.0, 50.0, 0.0])
def test_features_are_scaled_as_by_scale(percentile: float) -> None:
    features = problem(torch.float32)[0].detach()
    expected = SCALE(percentile).fit(None, Head(torch.eye(D), torch.zeros(D))).reshape(features)
    torch.testing.assert_close(ISH(percentile=percentile).shaped(features), expected)


def test_openoods_form_keeps_the_largest_activations_alone() -> None:
    features = problem(torch.float32)[0].detach()
    found = ISH(percentile=85.0, compat="openood").shaped(features).numpy()
    for row, shaped in zip(features.double().numpy(), found, strict=True):
        kept = np.argsort(row)[-3:]
        factor = np.exp(row.sum() / row[kept].sum())
        expected = np.zeros(D)
        expected[kept] = row[kept] * factor
        np.testing.assert_allclose(shaped, expected, rtol=1e-5)


def test_features_of_zeros_stay_zeros() -> None:
    assert torch.equal(ISH().shaped(torch.zeros(2, D)), torch.zeros(2, D))


@pytest.mark.parametrize("compat", ["paper", "openood"])
def test_loss_is_cross_entropy_and_only_the_weight_of_the_classifier_sees_the_scaling(compat: str) -> None:
    method = ISH(percentile=50.0, compat=compat)
    network = backbone(dropout=0).initialise(1).module().train()
    given = batch(torch.arange(8) % CLASSES)
    names, parameters = zip(*network.named_parameters(), strict=True)
    features, logits = features_and_logits(network, given.images)
    plain = functional.cross_entropy(logits, given.labels)
    loss = method.loss(network, given)
    torch.testing.assert_close(loss, plain)
    differing = {
        name
        for name, a, b in zip(
            names, torch.autograd.grad(loss, parameters), torch.autograd.grad(plain, parameters), strict=True
        )
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-7)
    }
    assert differing == {"fc.weight"}
    assert method.shaped(features).shape == (8, FEATURES)


def test_classifier_has_a_weight_decay_of_its_own() -> None:
    network = backbone().module()
    rest, head = ISH(head_weight_decay=0.25).parameter_groups(network)
    assert head["weight_decay"] == 0.25
    assert {id(p) for p in head["params"]} == {id(p) for p in network.fc.parameters()}
    assert "weight_decay" not in rest
    assert len(rest["params"]) + len(head["params"]) == len(list(network.parameters()))
