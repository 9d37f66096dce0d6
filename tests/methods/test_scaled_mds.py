import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from openbench.methods.gaussians import MDS, ScaledMDS

from .problems import KINDS, assert_equal, f, given, problem, scores, y


@pytest.mark.parametrize("beta", [0.5, 2.0])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dead"])
def test_equals_scipys_mahalanobis_distance_of_scaled_features(kind, beta):
    data = problem(kind)
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) ** beta for x in (f(data.train), f(data.test)))
    labels = y(data.train)
    means = np.array([train[labels == c].mean(axis=0) for c in np.unique(labels)])
    inner = train - means[np.searchsorted(np.unique(labels), labels)]
    precision = np.linalg.inv(inner.T @ inner / len(inner))
    assert_equal(scores(ScaledMDS(beta), data), cdist(test, means, "mahalanobis", VI=precision).min(axis=1) ** 2, 5e-5)


@pytest.mark.parametrize(("beta", "normalise"), [(0.0, False), (1.0, True)])
@pytest.mark.parametrize("kind", ["rectified", "dead"])
def test_its_ends_are_mds_and_mds_on_the_sphere(kind, beta, normalise):
    data = problem(kind)
    assert_equal(scores(ScaledMDS(beta), data), scores(MDS(normalise), data), rtol=1e-4)


def test_a_feature_of_zeros_stays_zero():
    data = problem()
    method = ScaledMDS(1.5).fit(data.train, None)
    x = given(features=torch.zeros(1, 24))
    assert bool(method.score(x).isfinite().all())
