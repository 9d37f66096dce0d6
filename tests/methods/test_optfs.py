import itertools

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from openbench.core.features import Head
from openbench.errors import MethodError
from openbench.methods.shaping import OptFS

from .problems import KINDS, assert_equal, changed, f, given, problem, scores, z


def shaped(data, intervals: int) -> np.ndarray:
    """Test features times θ, with one mask per interval."""
    train, test = f(data.train), f(data.test)
    low, high = np.quantile(train, 1e-3), np.quantile(train, 1 - 1e-3)
    edges = np.linspace(low, high, intervals + 1)
    gain = data.weight[z(data.train).argmax(axis=1)] * train
    theta = np.array([gain[(train >= a) & (train < b)].sum() / len(train) for a, b in itertools.pairwise(edges)])
    theta = 1000 * theta / np.linalg.norm(theta)
    result = np.zeros_like(test)
    for a, b, value in zip(edges[:-1], edges[1:], theta, strict=True):
        result += np.where((test >= a) & (test < b), value * test, 0)
    return result


@pytest.mark.parametrize("intervals", [1, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_mask_per_interval(kind, intervals):
    data = problem(kind)
    features = shaped(data, intervals)
    by_logit = (data.weight[z(data.test).argmax(axis=1)] * features).sum(axis=1)
    assert_equal(scores(OptFS(intervals), data), -by_logit, rtol=1e-4)
    by_energy = logsumexp(features @ data.weight.T + data.bias, axis=1)
    assert_equal(scores(OptFS(intervals, "energy"), data), -by_energy, rtol=1e-4)


@pytest.mark.parametrize("n", [3, 50, 5000])
def test_quantiles_of_streamed_activations_are_numpys(n):
    features, head = torch.randn(n, 24, generator=torch.Generator().manual_seed(n)), problem().head
    fitted = OptFS().fit(given(features=features, logits=head(features)), head)
    ends = np.quantile(features.double().numpy(), [1e-3, 1 - 1e-3])
    np.testing.assert_allclose(fitted.bounds_[[0, -1]], ends, rtol=1e-9)


def test_a_bound_belongs_to_the_interval_above():
    data = problem()
    fitted = OptFS(2).fit(data.train, data.head)
    fitted.bounds_ = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    fitted.theta_ = torch.tensor([0.0, 10.0, 1000.0, 0.0])
    rows = given(features=torch.diag(torch.tensor([1.0, 2.0, 3.0])), logits=torch.eye(6)[:3])
    fitted.head_ = Head(torch.ones(6, 3), torch.zeros(6))
    assert fitted.score(rows).tolist() == [-10.0, -2000.0, 0.0]


def test_a_head_of_zeros_gives_no_gain():
    data = problem()
    fitted = OptFS().fit(data.train, Head(torch.zeros(6, 24), data.head.bias))
    assert not fitted.theta_.any()
    assert not fitted.score(data.test).any()


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_constant_activations_are_refused(value):
    data = problem()
    rows = changed(data.train, features=torch.full((600, 24), value))
    with pytest.raises(MethodError, match=r"OptFS\.fit: the \.001 and \.999 quantiles"):
        OptFS().fit(rows, data.head)
