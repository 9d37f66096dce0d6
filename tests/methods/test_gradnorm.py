import numpy as np
import pytest
import torch

from openbench.methods.gradients import GradNorm

from .problems import KINDS, Problem, assert_equal, head_gradients, problem, scores


def by_autograd(data: Problem, temperature: float) -> np.ndarray:
    """One backward pass per sample, as the authors do."""
    gradients = head_gradients(data, lambda z: -torch.log_softmax(z / temperature, dim=0).sum())
    return np.array([float(weight.abs().sum()) for weight, _ in gradients])


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_autograd(kind, temperature):
    data = problem(kind, n=120)
    assert_equal(scores(GradNorm(temperature), data), -by_autograd(data, temperature))


def test_mean_divides_by_the_number_of_classes():
    data = problem(n=120)
    assert_equal(scores(GradNorm(mean=True), data), -by_autograd(data, 1.0) / 6)
