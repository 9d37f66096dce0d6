import numpy as np
import pytest
from scipy.special import logsumexp

from openbench.methods.dice import DICE

from .problems import KINDS, assert_equal, f, problem, scores


@pytest.mark.parametrize("percentile", [10, 70, 90])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_sums_over_the_contributions_that_stay(kind, percentile):
    """The B × C × D form of the authors: each sample's contributions, masked, summed over dimensions."""
    data = problem(kind, n=200)
    mean = f(data.train).mean(axis=0)
    contribution = data.weight * mean
    ordered = np.sort(contribution.ravel())
    position = (ordered.size - 1) * percentile / 100
    low = int(position)
    threshold = ordered[low] + (position - low) * (ordered[min(low + 1, ordered.size - 1)] - ordered[low])
    mask = contribution > threshold
    logits = np.stack([(data.weight * row * mask).sum(axis=1) + data.bias for row in f(data.test)])
    assert_equal(scores(DICE(percentile), data), -logsumexp(logits, axis=1))
