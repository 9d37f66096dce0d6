import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from openbench.errors import MethodError
from openbench.methods.gmm import GMM

from .problems import KINDS, assert_equal, f, given, problem, scores, y


def by_scipy(data, ridge: float) -> np.ndarray:
    """log π_c N(f; μ_c, Σ_c + εs̄ I) of every class that has samples, (n, k)."""
    features, labels = f(data.train), y(data.train)
    members = [features[labels == c] for c in np.unique(labels)]
    variance = sum(((own - own.mean(axis=0)) ** 2).sum(axis=0) for own in members).mean() / len(features)
    found = []
    for own in members:
        covariance = np.cov(own.T, bias=True) if len(own) > 1 else np.zeros((24, 24))
        normal = multivariate_normal(own.mean(axis=0), covariance + ridge * variance * np.eye(24))
        found.append(np.log(len(own) / len(features)) + normal.logpdf(f(data.test)))
    return np.stack(found, axis=1)


@pytest.mark.parametrize(("kind", "ridge"), [*((kind, 1e-3) for kind in KINDS), ("signed", 1e-6), ("rectified", 1.0)])
def test_equals_the_mixture_of_scipys_normals(kind, ridge):
    data = problem(kind, n=200 if kind == "many_classes" else 600)
    expected = by_scipy(data, ridge)
    assert_equal(scores(GMM(ridge), data), -logsumexp(expected, axis=1), rtol=2e-5)
    by_class = GMM(ridge).fit(data.train, None).class_scores(data.test).numpy()
    present = np.unique(y(data.train))
    np.testing.assert_allclose(by_class[:, present], -expected, rtol=2e-5, atol=1e-3)
    assert np.isinf(np.delete(by_class, present, axis=1)).all()


def test_classes_of_their_own_spread_are_told_apart_where_one_covariance_cannot():
    """Twice as far out of the narrow class as out of the wide one, whose samples lie there."""
    generator = torch.Generator().manual_seed(0)
    narrow, wide = 0.1 * torch.randn(500, 3, generator=generator), 5 + 4 * torch.randn(500, 3, generator=generator)
    train = given(features=torch.cat([narrow, wide]), labels=torch.arange(2).repeat_interleave(500))
    out, inside = torch.tensor([[-2.0, -2.0, -2.0]]), torch.tensor([[9.0, 9.0, 9.0]])
    found = GMM().fit(train, None).score(given(features=torch.cat([out, inside])))
    assert float(found[1]) == pytest.approx(-np.log(0.5) + 3 * np.log(4 * np.sqrt(2 * np.pi)) + 1.5, rel=0.03)
    assert float(found[0]) > float(found[1])


def test_a_ridge_that_rounding_swallows_is_refused():
    train = given(features=[[1.0, 1, 1], [3, 3, 3]], labels=[0, 0])
    with pytest.raises(MethodError, match=r"GMM.ridge — found 1e-30, allowed: larger ones: the covariance of 2 sampl"):
        GMM(ridge=1e-30).fit(train, None)


def test_scale_and_offset_of_the_features_move_all_scores_alike():
    data = problem("signed")
    plain = scores(GMM(), data)
    x = [given(features=100 * s.features + 7, labels=s.labels) for s in (data.train, data.test)]
    moved = GMM().fit(x[0], None).score(x[1].without_labels()).numpy()
    np.testing.assert_allclose(moved - plain, 24 * np.log(100), rtol=1e-3)
