"""Gaussians of classes, against scikit-learn and SciPy."""

import numpy as np
import pytest
import torch
from scipy.linalg import pinvh
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.covariance import EmpiricalCovariance
from sklearn.preprocessing import StandardScaler, normalize

from openbench.errors import MethodError
from openbench.methods import _stats
from openbench.methods.gaussians import GMM, MDS, RMDS, SSD, ScaledMDS, _gaussian

from .problems import (
    KINDS,
    assert_equal,
    changed,
    equals,
    f,
    given,
    kinds_but,
    on_sphere,
    problem,
    scores,
    without_dead,
    y,
)


def distances(features: np.ndarray, mean: np.ndarray, cloud: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distances to `mean` under the covariance of `cloud`, by sklearn and SciPy."""
    covariance = EmpiricalCovariance(assume_centered=True, store_precision=False).fit(cloud).covariance_
    return np.einsum("nd,de,ne->n", features - mean, pinvh(covariance, rtol=1e-10), features - mean)


def nearest(data, method=None) -> np.ndarray:
    """The distance to the nearest class mean, with the covariance of class-centred features."""
    features, labels = f(data.train), y(data.train)
    means = {c: features[labels == c].mean(axis=0) for c in np.unique(labels)}
    within = np.stack([row - means[label] for row, label in zip(features, labels, strict=True)])
    return np.min([distances(f(data.test), mean, within) for mean in means.values()], axis=0)


test_mds_equals_distances_taken_class_by_class = equals(MDS())(nearest)
# n = 20 < d = 24: distances live in the span of the samples, as with a pseudo-inverse.
test_mds_more_dimensions_than_samples = equals(MDS(), kinds=["rectified"], n=20, rtol=1e-4)(nearest)


@equals(MDS(normalise=True), rtol=1e-4)
def test_mds_normalised_equals_distances_of_unit_vectors(data, method):
    return scores(MDS(), on_sphere(data))


@pytest.mark.parametrize("method", [MDS(), RMDS()])
def test_mds_dead_and_duplicated_features_change_nothing(method):
    data = problem("dead")
    thin = method.fit(without_dead(data.train), None).score(without_dead(data.test))
    assert_equal(scores(method, data), thin.numpy(), rtol=1e-4)


def test_mds_classes_that_appear_late_are_counted(monkeypatch):
    """The highest label stands in the last chunk: accumulators grow."""
    data = problem()
    whole, order = scores(MDS(), data), torch.argsort(data.train.labels)
    monkeypatch.setattr(_stats, "FIT_BATCH", 50)
    assert_equal(MDS().fit(data.train[order], None).score(data.test), whole)


def test_mds_translation_of_all_features_changes_nothing():
    """Sums of squares of features around 1000 would lose the variance without the shift."""
    data = problem()
    train, test = (changed(x, features=x.features + 1000) for x in (data.train, data.test))
    found = MDS().fit(train, None).score(test)
    assert_equal(found, scores(MDS(), data), rtol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_rmds_equals_distances_taken_class_by_class(kind):
    data = problem(kind)
    to_class, overall = nearest(data), f(data.train).mean(axis=0)
    background = distances(f(data.test), overall, f(data.train) - overall)
    # The difference of two distances: its error is measured by them, not by itself.
    np.testing.assert_allclose(scores(RMDS(), data), to_class - background, rtol=1e-5, atol=1e-5 * to_class.max())


@pytest.mark.parametrize("kind", kinds_but("many_classes"))
def test_rmds_normalised_equals_distances_of_unit_vectors(kind):
    data = problem(kind)
    found, expected = scores(RMDS(normalise=True), data), scores(RMDS(), on_sphere(data))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3 * np.abs(expected).max())


@equals(ScaledMDS(0.5), ScaledMDS(2.0), kinds=kinds_but("dead"), rtol=5e-5)
def test_scaled_mds_equals_scipys_mahalanobis_distance_of_scaled_features(data, method):
    train, test = (x / np.linalg.norm(x, axis=1, keepdims=True) ** method.beta for x in (f(data.train), f(data.test)))
    labels = y(data.train)
    means = np.array([train[labels == c].mean(axis=0) for c in np.unique(labels)])
    inner = train - means[np.searchsorted(np.unique(labels), labels)]
    precision = np.linalg.inv(inner.T @ inner / len(inner))
    return cdist(test, means, "mahalanobis", VI=precision).min(axis=1) ** 2


@equals(ScaledMDS(0.0), ScaledMDS(1.0), kinds=["rectified", "dead"], rtol=1e-4)
def test_scaled_mds_its_ends_are_mds_and_mds_on_the_sphere(data, method):
    return scores(MDS(normalise=method.beta == 1), data)


def test_scaled_mds_a_feature_of_zeros_stays_zero():
    data = problem()
    method = ScaledMDS(1.5).fit(data.train, None)
    x = given(features=torch.zeros(1, 24))
    assert bool(method.score(x).isfinite().all())


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
def test_gmm_equals_the_mixture_of_scipys_normals(kind, ridge):
    data = problem(kind, n=200 if kind == "many_classes" else 600)
    expected = by_scipy(data, ridge)
    assert_equal(scores(GMM(ridge), data), -logsumexp(expected, axis=1), rtol=2e-5)
    by_class = GMM(ridge).fit(data.train, None).class_scores(data.test).numpy()
    present = np.unique(y(data.train))
    np.testing.assert_allclose(by_class[:, present], -expected, rtol=2e-5, atol=1e-3)
    assert np.isinf(np.delete(by_class, present, axis=1)).all()


def test_gmm_a_ridge_that_rounding_swallows_is_refused():
    train = given(features=[[1.0, 1, 1], [3, 3, 3]], labels=[0, 0])
    with pytest.raises(MethodError, match=r"GMM.ridge — found 1e-30, allowed: larger ones: the covariance of 2 sampl"):
        GMM(ridge=1e-30).fit(train, None)


@equals(SSD(), rtol=1e-4)
def test_ssd_one_cluster_equals_sklearns_empirical_covariance(data, method):
    return by_sklearn(data, np.zeros(len(data.train)))


@equals(SSD("labels"), kinds=["rectified", "signed", "two_classes"], rtol=1e-4)
def test_ssd_labels_as_clusters_equal_sklearns_covariances(data, method):
    return by_sklearn(data, y(data.train))


def by_sklearn(data, members: np.ndarray) -> np.ndarray:
    """Unit features, standardised, and a Gaussian per cluster, all by sklearn."""
    scaler = StandardScaler().fit(normalize(f(data.train)))
    train, test = (scaler.transform(normalize(f(x))) for x in (data.train, data.test))
    return np.min(
        [EmpiricalCovariance().fit(train[members == m]).mahalanobis(test) for m in np.unique(members)], axis=0
    )


def test_ssd_k_means_finds_clusters_that_are_far_apart():
    """Three directions a hundred deviations apart: its clusters are those planted, so it scores as they do."""
    rng = np.random.default_rng(0)
    planted = rng.integers(3, size=400)
    features = 10 * np.eye(8)[planted] + 0.1 * rng.normal(size=(400, 8))
    train, test = given(features=features, labels=planted), given(features=rng.normal(size=(50, 8)))
    starts = (SSD(3, seed=seed).fit(train, None) for seed in range(4))
    found = [method.score(test) for method in starts]
    expected = SSD("labels").fit(train, None).score(test)
    assert sum(torch.allclose(x, expected, rtol=1e-3) for x in found) >= 1, "no start finds them"


def test_ssd_a_cluster_of_one_sample_or_of_equal_ones_counts_for_nothing():
    data = problem("signed")
    features = torch.cat([data.train.features, torch.full((3, 24), 7.0)])
    labels = torch.cat([data.train.labels, torch.tensor([6, 6, 7])])
    more = given(features=features, labels=labels)
    fitted = SSD("labels").fit(more, None)
    assert len(fitted.means_) == len(data.train.labels.unique())
    assert float(fitted.score(data.test).min()) > 0


def test_ssd_clusters_that_do_not_vary_and_more_clusters_than_samples_are_refused():
    distinct = given(features=torch.eye(4), labels=torch.arange(4))
    with pytest.raises(MethodError, match=r"do not vary within clusters .4 samples in 4 clusters"):
        SSD("labels").fit(distinct, None)
    with pytest.raises(MethodError, match="clusters — found 5, allowed: 1 to 4"):
        SSD(5).fit(distinct, None)


def test_ssd_a_small_cluster_far_from_the_origin_has_the_rank_of_its_samples():
    """Three samples span two directions; the squares of a mean a thousand deviations away leave no third."""
    rows = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)) / 10 + 100
    mean, whiten = _gaussian(iter([rows[:1], rows[1:]]), torch.zeros(3, dtype=torch.int64), 0)
    assert whiten.shape == (16, 2)
    torch.testing.assert_close(mean, rows.double().mean(dim=0), rtol=1e-12, atol=0)
    expected = np.linalg.pinv(np.cov(rows.double().numpy().T, bias=True), rcond=1e-10)
    np.testing.assert_allclose((whiten @ whiten.T).numpy(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
