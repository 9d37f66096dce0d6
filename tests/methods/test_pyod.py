"""PyOD's detectors against scikit-learn's and against formulas of their own."""

import importlib.util

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM

from openbench.errors import MethodError, NotApplicableError
from openbench.methods.tabular import PyOD
from openbench.testing._toy import planted

from .problems import assert_equal, f, given, problem, scores

installed = pytest.mark.skipif(importlib.util.find_spec("pyod") is None, reason="needs the package pyod")
DATA = problem("signed")
TRAIN, TEST = f(DATA.train), f(DATA.test)


def principal_components() -> np.ndarray:
    """Distances to the unit eigenvectors of the correlation matrix, each over its share of the variance."""
    mean, std = TRAIN.mean(axis=0), TRAIN.std(axis=0)
    values, vectors = np.linalg.eigh(np.cov(((TRAIN - mean) / std).T))
    _, _, directions = np.linalg.svd((TRAIN - mean) / std, full_matrices=False)
    assert np.allclose(np.abs(vectors[:, ::-1].T), np.abs(directions), atol=1e-6)
    # The sign of an eigenvector is a convention: scikit-learn makes its largest entry positive.
    signs = np.sign(directions[np.arange(24), np.abs(directions).argmax(axis=1)])
    return (cdist((TEST - mean) / std, directions * signs[:, None]) / (values[::-1] / values.sum())).sum(axis=1)


def large_clusters() -> np.ndarray:
    """Distance to the nearest centre of the large clusters: those that cover 90 %, or come before a drop by 5."""
    clusters = KMeans(8, n_init="auto", random_state=0).fit(TRAIN)
    sizes = np.bincount(clusters.labels_)
    order = np.argsort(-sizes)
    covered = np.cumsum(sizes[order])
    large = next(
        i + 1 for i in range(7) if covered[i] >= 0.9 * len(TRAIN) or sizes[order[i]] >= 5 * sizes[order[i + 1]]
    )
    to_large = cdist(TEST, clusters.cluster_centers_[order[:large]]).min(axis=1)
    own = clusters.predict(TEST)
    at_home = np.linalg.norm(TEST - clusters.cluster_centers_[own], axis=1)
    return np.where(np.isin(own, order[:large]), at_home, to_large)


EXPECTED = {
    "IForest": lambda: -IsolationForest(random_state=0).fit(TRAIN).score_samples(TEST),
    "OCSVM": lambda: -OneClassSVM(gamma="auto").fit(TRAIN).decision_function(TEST),
    "KNN": lambda: NearestNeighbors(n_neighbors=5).fit(TRAIN).kneighbors(TEST)[0][:, -1],
    "LOF": lambda: -LocalOutlierFactor(novelty=True).fit(TRAIN).score_samples(TEST),
    "PCA": principal_components,
    "CBLOF": large_clusters,
}


@installed
@pytest.mark.parametrize("name", EXPECTED)
def test_equals_an_implementation_of_its_own_up_to_a_constant(name):
    found, expected = scores(PyOD(name), DATA), EXPECTED[name]()
    assert_equal(found - found.mean(), expected - expected.mean(), rtol=1e-4)


@installed
def test_what_a_detector_refuses_is_a_method_error_that_names_it():
    """Four planted clusters of equal size: none is large beside the others."""
    with pytest.raises(MethodError, match=r"CBLOF refuses \(480, 32\) features"):
        PyOD("CBLOF").fit(planted(seed=1, classes=4, free=16).train, None)


@installed
def test_principal_components_without_variance_are_refused_and_not_scored_alike():
    """Divided by a variance of 0 every distance is infinite, and an AUROC of .5 would look like a result."""
    flat = torch.cat([torch.tensor(TRAIN), torch.ones(len(TRAIN), 2, dtype=torch.float64)], dim=1).float()
    with pytest.raises(MethodError, match=rf"PCA gives {len(TRAIN)} of {len(TRAIN)} training samples .*not finite"):
        PyOD("PCA").fit(given(features=flat), None)
    assert PyOD("HBOS").fit(given(features=flat), None).detector_ is not None


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotApplicableError, match=r"pip install .*\[pyod\]'"):
        PyOD("OCSVM")


@installed
def test_a_detector_is_fitted_on_a_seeded_subset_where_there_are_more_samples():
    fitted = PyOD("KNN", max_train=50).fit(DATA.train, None)
    chosen = np.sort(np.random.default_rng(0).choice(len(TRAIN), 50, replace=False))
    expected = NearestNeighbors(n_neighbors=5).fit(TRAIN[chosen]).kneighbors(TEST)[0][:, -1]
    assert_equal(fitted.score(DATA.test), expected)
    other = PyOD("KNN", seed=1, max_train=50).fit(DATA.train, None)
    assert not torch.equal(fitted.score(DATA.test), other.score(DATA.test))
