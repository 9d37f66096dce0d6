import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from openbench.methods.logits import Entropy

from .problems import KINDS, assert_equal, given, problem, scores, z


@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipy(kind):
    data = problem(kind)
    assert_equal(scores(Entropy(), data), entropy(softmax(z(data.test), axis=1), axis=1))


def test_entropies_near_zero_keep_their_order():
    """In float32 softmax is 1 from a lead of 17 on, and its entropy 0; probabilities that underflow add nothing."""
    logits = torch.tensor([[60.0, 0.0, -900.0], [80.0, 0.0, -900.0], [300.0, 0.0, -900.0]])
    found = Entropy().score(given(logits=logits))
    assert found[0] > found[1] > found[2] >= 0
