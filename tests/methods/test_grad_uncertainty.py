import pytest
import torch

from openbench.methods.gradients import GradUncertainty

from .problems import KINDS, assert_equal, head_gradients, problem, scores


@pytest.mark.parametrize("kind", KINDS)
def test_equals_a_backward_pass_per_sample_of_the_cost_of_a_label_of_ones(kind):
    data = problem(kind, n=60)
    # The other half of the binary cross-entropy, (1 − y) log(1 − p), is zero.
    gradients = head_gradients(data, lambda z: -torch.log_softmax(z, dim=0).sum())
    expected = [-float(weight.square().sum() + bias.square().sum()) for weight, bias in gradients]
    assert_equal(scores(GradUncertainty(), data), expected, rtol=2e-5)
