import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats.mstats import mquantiles

from openbench.methods.shaping import DICE

from .problems import KINDS, assert_equal, f, problem, scores


@pytest.mark.parametrize("percentile", [10, 70, 90])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_sums_over_the_contributions_that_stay(kind, percentile):
    """The B × C × D form of the authors: each sample's contributions, masked, summed over dimensions."""
    data = problem(kind, n=200)
    mean = f(data.train).mean(axis=0)
    contribution = data.weight * mean
    # alphap = betap = 1 is the definition with linear interpolation between order statistics.
    mask = contribution > mquantiles(contribution.ravel(), [percentile / 100], alphap=1, betap=1)
    logits = np.stack([(data.weight * row * mask).sum(axis=1) + data.bias for row in f(data.test)])
    assert_equal(scores(DICE(percentile), data), -logsumexp(logits, axis=1))
