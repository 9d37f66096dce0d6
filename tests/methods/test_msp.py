import numpy as np
import pytest
import torch
from problems import KINDS, assert_equal, problem, scores, z
from scipy.special import expit, softmax

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.methods.msp import MSP


@pytest.mark.parametrize("kind", KINDS)
def test_equals_scipy(kind):
    data = problem(kind)
    assert_equal(scores(MSP(), data), -softmax(z(data.test), axis=1).max(axis=1))


@pytest.mark.parametrize("kind", KINDS)
def test_exact_sums_the_probabilities_of_all_other_classes(kind):
    data = problem(kind)
    p = np.sort(softmax(z(data.test), axis=1), axis=1)
    assert_equal(scores(MSP(exact=True), data), p[:, :-1].sum(axis=1))


def test_exact_ranks_where_float32_probabilities_tie():
    """Leads of 20 to 80 logits: p rounds to 1 in float32, and to 1 − 1e-9 … in truth, a sigmoid for two classes."""
    lead = torch.linspace(20, 80, 200)
    x = FeatureSet({Field.LOGITS: torch.stack([lead, torch.zeros(200)], dim=1)})
    assert len(MSP().score(x).unique()) == 1
    exact = MSP(exact=True).score(x)
    assert len(exact.unique()) == 200
    np.testing.assert_allclose(exact.double(), expit(-lead.double().numpy()), rtol=1e-5)


def test_both_forms_rank_alike_where_nothing_saturates():
    data = problem("two_classes", n=200)
    loose, exact = scores(MSP(), data), scores(MSP(exact=True), data)
    apart = np.diff(loose[np.argsort(exact)])
    assert apart.min() > -1e-6
