import pytest
from scipy.special import logsumexp

from openbench.errors import MethodError
from openbench.methods.energy import Energy

from .problems import KINDS, assert_equal, problem, scores, z


@pytest.mark.parametrize("temperature", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipy(kind, temperature):
    data = problem(kind)
    expected = -temperature * logsumexp(z(data.test) / temperature, axis=1)
    assert_equal(scores(Energy(temperature), data), expected)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(MethodError, match="temperature — found"):
        Energy(temperature)
