import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logit

from openbench.core.features import Head
from openbench.methods.gradients import PRO
from openbench.testing._toy import network_with


@pytest.fixture(scope="module")
def images():
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def walked(network, image: torch.Tensor, method: PRO) -> float:
    """The authors' recipe for one image in float64: descend on the confidence, keep the least one met."""
    module = network.module().double().eval()
    x, met = image.double()[None], []
    for _ in range(method.steps + 1):
        x = x.detach().requires_grad_(True)
        p = torch.softmax(module(x) / method.temperature, dim=1)
        confidence = p.max() if method.confidence == "msp" else (p * p.log()).sum()
        confidence.backward()
        met.append(float(confidence.detach()))
        x = x - method.epsilon * x.grad.sign()
    module.float()
    return min(met)


@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize(("confidence", "temperature"), [("msp", 1.0), ("msp", 5.0), ("entropy", 1.0)])
def test_equals_the_recipe_through_a_real_network(network, images, confidence, temperature, steps):
    method = PRO(confidence, 0.01, steps, temperature)
    least = np.array([walked(network, image, method) for image in images])
    expected = -logit(least) - np.log(3) if confidence == "msp" else -least
    # The sign of a gradient near zero may differ in float32, and moves one of 192 elements the other way.
    np.testing.assert_allclose(method.score_images(images, network), expected, rtol=2e-3, atol=2e-3)


def test_the_walk_goes_on_where_probabilities_round_to_one():
    """Two classes with z = ±100·x: the lead falls by 2·100·3ε with every step, at p = 1 in float32 as elsewhere."""
    weight = torch.tensor([[100.0, 100.0, 100.0], [-100.0, -100.0, -100.0]])
    network = network_with(Head(weight, torch.zeros(2)))
    x = torch.full((1, 3, 1, 1), 0.5)
    found = PRO(epsilon=0.01, steps=4).score_images(x, network)
    np.testing.assert_allclose(found, [-(200 * 3) * (0.5 - 4 * 0.01)], rtol=1e-5)


def test_entropy_has_its_gradient_where_one_class_has_all():
    """Three classes, the top one ahead by leads a and b: the walk lowers both; entropy in closed form."""
    weight = torch.tensor([[100.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    network = network_with(Head(weight, torch.zeros(3)))
    x = torch.tensor([1.5, 0.0, 0.0]).view(1, 3, 1, 1)
    at = 1.5 - 3 * 0.3
    log_p = log_softmax(np.array([100.0 * at, 0.0, -at]))
    found = PRO("entropy", epsilon=0.3, steps=3).score_images(x, network)
    np.testing.assert_allclose(found, [-(np.exp(log_p) * log_p).sum()], rtol=1e-3)


def test_each_step_costs_one_pass(network, images):
    before = network.passes
    PRO(steps=3).score_images(images, network)
    assert network.passes - before == 4 * len(images)
