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


def test_another_percentile_after_a_fit_makes_another_mask():
    """OpenOOD keeps its first mask."""
    data = problem()
    assert np.abs(scores(DICE(90), data) - scores(DICE(10), data)).max() > 0.1


def test_the_classifier_itself_stays_whole():
    data = problem()
    before = data.head.weight.clone()
    DICE().fit(data.train, data.head)
    assert bool((data.head.weight == before).all())
