import numpy as np
import pytest
import torch

from openbench.methods.gradnorm import GradNorm

from .problems import KINDS, Problem, assert_equal, problem, scores


def by_autograd(data: Problem, temperature: float) -> np.ndarray:
    """One backward pass per sample through a linear layer in float64, as the authors do."""
    layer = torch.nn.Linear(24, data.head.num_classes).double()
    layer.load_state_dict({"weight": data.head.weight, "bias": data.head.bias})
    norms = []
    for row in data.test.features.double():
        layer.zero_grad()
        loss = -torch.log_softmax(layer(row) / temperature, dim=0).sum()
        loss.backward()
        norms.append(float(layer.weight.grad.abs().sum()))
    return np.array(norms)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_autograd(kind, temperature):
    data = problem(kind, n=120)
    assert_equal(scores(GradNorm(temperature), data), -by_autograd(data, temperature))


def test_mean_divides_by_the_number_of_classes():
    data = problem(n=120)
    assert_equal(scores(GradNorm(mean=True), data), -by_autograd(data, 1.0) / 6)
