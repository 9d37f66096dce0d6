import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats.mstats import mquantiles

from openbench.methods.shaping import ReAct

from .problems import KINDS, assert_equal, f, given, problem, scores


@pytest.mark.parametrize("percentile", [0, 85, 90, 99, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_clipping_by_hand(kind, percentile):
    data = problem(kind)
    # alphap = betap = 1 is the definition with linear interpolation between order statistics.
    [threshold] = mquantiles(f(data.val).ravel(), [percentile / 100], alphap=1, betap=1)
    clipped = np.where(f(data.test) > threshold, threshold, f(data.test))
    expected = -logsumexp(clipped @ data.weight.T + data.bias, axis=1)
    assert_equal(scores(ReAct(percentile), data), expected)


def test_the_threshold_comes_from_validation_not_from_training():
    assert ReAct.needs.fit_on == "id_val"


def test_a_threshold_above_all_features_is_the_energy():
    data = problem()
    big = given(features=1000 + torch.rand(5, 24))
    method = ReAct(50).fit(big, data.head)
    torch.testing.assert_close(method.score(data.test), -torch.logsumexp(data.test.logits, dim=1))
