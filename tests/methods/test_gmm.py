import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from openbench.errors import MethodError
from openbench.methods.gaussians import GMM

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


def test_a_ridge_that_rounding_swallows_is_refused():
    train = given(features=[[1.0, 1, 1], [3, 3, 3]], labels=[0, 0])
    with pytest.raises(MethodError, match=r"GMM.ridge — found 1e-30, allowed: larger ones: the covariance of 2 sampl"):
        GMM(ridge=1e-30).fit(train, None)
