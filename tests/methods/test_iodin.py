import numpy as np
import pytest
import torch
from scipy.special import logit, softmax
from torch.nn import functional

from openbench.core.request import Perturb
from openbench.methods.gradients import IODIN

from .problems import STD, given


@pytest.mark.parametrize("epsilon", [0.0014, 0.2])
@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_equals_the_recipe_through_a_real_network(network, temperature, epsilon):
    """One backward pass per image in float64, then one element of that image moved."""
    images = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    methods = IODIN(temperature, epsilon), IODIN(temperature, epsilon, scale="probability")
    found, published = (m.score(given(logits=network.outputs(images, m.request).logits)) for m in methods)
    module = network.module().double().eval()
    expected = []
    for image in images.double():
        x = image[None].requires_grad_(True)
        logits = module(x)
        functional.cross_entropy(logits / temperature, logits.argmax(dim=1)).backward()
        channel, row, column = np.unravel_index(int(x.grad.abs().argmax()), x.shape[1:])
        moved = x.detach().clone()
        sign = 1.0 if float(x.grad[0, channel, row, column]) >= 0 else -1.0
        moved[0, channel, row, column] -= epsilon * sign / STD[channel]
        with torch.no_grad():
            expected.append(softmax(module(moved).numpy() / temperature, axis=1).max())
    module.float()
    odds, shortfall = -logit(expected) - np.log(3), 1 / 4 - np.array(expected)
    np.testing.assert_allclose(found, odds, rtol=1e-3, atol=1e-4 * np.abs(odds).max())
    np.testing.assert_allclose(published, shortfall, rtol=1e-3, atol=1e-4 * np.abs(shortfall).max())


def test_request_names_the_step_of_this_instance():
    assert IODIN(10, 0.0028).request.perturb == Perturb(10.0, 0.0028, "peak")
    assert IODIN().request == IODIN.needs
