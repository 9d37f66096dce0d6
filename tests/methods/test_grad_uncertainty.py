import numpy as np
import pytest
import torch
from torch.nn import functional

from openbench.methods.grad_uncertainty import GradUncertainty

from .problems import KINDS, assert_equal, given, problem, scores


@pytest.mark.parametrize("kind", KINDS)
def test_equals_a_backward_pass_per_sample_of_the_cost_of_a_label_of_ones(kind):
    data = problem(kind, n=60)
    layer = torch.nn.Linear(24, data.head.num_classes).double()
    layer.load_state_dict({"weight": data.head.weight, "bias": data.head.bias})
    expected = []
    for row in data.test.features.double():
        layer.zero_grad()
        # The other half of the binary cross-entropy, (1 − y) log(1 − p), is zero.
        (-functional.log_softmax(layer(row), dim=0).sum()).backward()
        expected.append(-sum(float(q.grad.square().sum()) for q in layer.parameters()))
    assert_equal(scores(GradUncertainty(), data), np.array(expected), rtol=2e-5)


def test_a_uniform_prediction_scores_highest_and_zero():
    logits = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.1, 1.0], [9.0, 1.0, 1.0]])
    x = given(features=torch.ones(3, 4), logits=logits)
    found = GradUncertainty().score(x)
    assert float(found[0]) == pytest.approx(0, abs=1e-10)
    assert float(found[0]) > float(found[1]) > float(found[2])
