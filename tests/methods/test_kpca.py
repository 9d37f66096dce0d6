import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from openbench.methods.subspaces import KPCA

from .problems import KINDS, assert_equal, f, given, problem, scores, unit


def errors(train: np.ndarray, test: np.ndarray, variance: float) -> np.ndarray:
    """Reconstruction errors by sklearn, which keeps as many components as hold the share of the variance."""
    pca = PCA(variance, svd_solver="full").fit(train)
    return np.linalg.norm(test - pca.inverse_transform(pca.transform(test)), axis=1)


@pytest.mark.parametrize("variance", [0.1, 0.7, 0.85])
@pytest.mark.parametrize("kind", KINDS)
def test_cosine_kernel_equals_sklearns_reconstruction_of_unit_features(kind, variance):
    data = problem(kind)
    expected = errors(unit(f(data.train)), unit(f(data.test)), variance)
    assert_equal(scores(KPCA("cosine", variance), data), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gaussian_kernel_equals_sklearns_reconstruction_of_random_features(kind):
    data = problem(kind)
    method = KPCA(variance=0.8, gamma=1.5, components=100)
    found = scores(method, data)
    frequencies, phases = method.frequencies_.double().numpy(), method.phases_.double().numpy()
    train, test = (np.cos(unit(f(x)) @ frequencies.T + phases) / np.sqrt(50) for x in (data.train, data.test))
    assert_equal(found, errors(train, test, 0.8), rtol=1e-3)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_products_of_random_features_approximate_the_kernel(gamma):
    data = problem("signed", n=60)
    fitted = KPCA(gamma=gamma, components=50_000, variance=0.5)
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(50_000, 24, generator=generator, dtype=torch.float64)
    fitted.frequencies_ = (2 * gamma) ** 0.5 * normal
    fitted.phases_ = 2 * torch.pi * torch.rand(50_000, generator=generator, dtype=torch.float64)
    mapped = fitted._mapped(data.test.features.double())
    rows = unit(f(data.test))
    kernel = np.exp(-gamma * ((rows[:, None] - rows) ** 2).sum(axis=2))
    np.testing.assert_allclose(mapped @ mapped.T, kernel, atol=0.03)


def test_draws_of_fit_have_the_stated_distribution():
    method = KPCA(gamma=3.0, components=1000).fit(given(features=torch.randn(9, 5)), None)
    assert float(method.frequencies_.std()) == pytest.approx(6**0.5, rel=0.05)
    assert abs(float(method.frequencies_.mean())) < 0.1
    assert 0 <= float(method.phases_.min()) < 0.05
    assert 6.2 < float(method.phases_.max()) < 2 * np.pi
    assert float(method.phases_.std()) == pytest.approx(2 * np.pi / 12**0.5, rel=0.05)
