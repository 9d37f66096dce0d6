import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats.mstats import mquantiles

from openbench.methods.shaping import VRA

from .problems import KINDS, assert_equal, f, problem, scores


@pytest.mark.parametrize("below", ["lift", "zero"])
@pytest.mark.parametrize(("high", "low"), [(90, 10), (99, 1), (85, 15), (50, 50)])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_clipping_by_hand(kind, high, low, below):
    data = problem(kind)
    # alphap = betap = 1 is the definition with linear interpolation between order statistics.
    t_low, t_high = mquantiles(f(data.val).ravel(), [low / 100, high / 100], alphap=1, betap=1)
    features = f(data.test)
    clipped = np.where(features > t_high, t_high, features)
    clipped[features < t_low] = t_low if below == "lift" else 0
    expected = -logsumexp(clipped @ data.weight.T + data.bias, axis=1)
    assert_equal(scores(VRA(high, low, below), data), expected)
