import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from openbench.methods.msp import MSP

from .problems import KINDS, assert_equal, given, problem, scores, z


@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipy(kind):
    data = problem(kind)
    assert_equal(scores(MSP(), data), -softmax(z(data.test), axis=1).max(axis=1))


@pytest.mark.parametrize("kind", KINDS)
def test_exact_is_the_log_odds_of_all_other_classes(kind):
    data = problem(kind)
    ordered = np.sort(z(data.test), axis=1)
    odds = logsumexp(ordered[:, :-1], axis=1) - ordered[:, -1]
    assert_equal(scores(MSP(exact=True), data), odds - np.log(ordered.shape[1] - 1))


def test_exact_ranks_where_float32_probabilities_tie():
    """Leads of 20 to 2000 logits: p rounds to 1 in float32; the odds of two classes are the lead."""
    lead = torch.linspace(20, 2000, 200)
    x = given(logits=torch.stack([lead, torch.zeros(200)], dim=1))
    assert len(MSP().score(x).unique()) == 1
    exact = MSP(exact=True).score(x)
    torch.testing.assert_close(exact, -lead)
