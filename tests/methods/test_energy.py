import pytest
from scipy.special import logsumexp

from openbench.methods.logits import Energy

from .problems import KINDS, assert_equal, problem, scores, z


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipy(kind, temperature):
    data = problem(kind)
    expected = -temperature * logsumexp(z(data.test) / temperature, axis=1)
    assert_equal(scores(Energy(temperature), data), expected)
