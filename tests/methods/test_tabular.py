"""Detectors for tables, against PyOD, scikit-learn and counting."""

import importlib.util

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, skew
from sklearn.cluster import KMeans
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM

from openbench.errors import MethodError, NotApplicableError
from openbench.methods import tabular
from openbench.methods.tabular import COF, COPOD, DAGMM, ECOD, SOD, Compression, Mixture, PyOD
from openbench.testing._toy import planted

from .problems import assert_equal, equals, f, given, problem, scores


def counted(train: np.ndarray, test: np.ndarray, ecod: bool) -> np.ndarray:
    """Sum over features for each row of `test`, tails counted one by one."""
    total = np.zeros(len(test))
    for column, values in zip(train.T, test.T, strict=True):
        skewness = 0.0 if np.ptp(column) == 0 else skew(column)
        for i, value in enumerate(values):
            left = -np.log((np.count_nonzero(column <= value) + 1) / (len(column) + 1))
            right = -np.log((np.count_nonzero(column >= value) + 1) / (len(column) + 1))
            skewed = left + right if skewness == 0 else (left if skewness < 0 else right)
            total[i] += max(left, right, skewed) if ecod else max((left + right) / 2, skewed)
    return total


@equals(ECOD(), COPOD(), kinds=["rectified", "signed", "dead"], n=80)
def test_ecod_equals_tails_counted_one_by_one(data, method):
    return counted(f(data.train), f(data.test), isinstance(method, ECOD))


@pytest.mark.parametrize("kind", ["rectified", "dead"])
@pytest.mark.parametrize("cls", [ECOD, COPOD])
def test_ecod_training_values_too_many_to_be_copied_count_the_same(cls, kind, monkeypatch):
    """Rectified and constant features repeat values in several blocks."""
    data = problem(kind, n=80)
    monkeypatch.setattr(tabular, "_SORTED_IN_MEMORY", 80 * 24 - 1)
    monkeypatch.setattr(tabular, "_SORTED", 7 * 24)  # blocks of 7 of the 80
    fitted = cls().fit(data.train, None)
    assert_equal(fitted.score(data.test.without_labels()), counted(f(data.train), f(data.test), cls is ECOD))
    assert fitted.tails_.values.data_ptr() == data.train.features.data_ptr()


@pytest.mark.parametrize(("cls", "expected"), [(ECOD, np.log(5) + np.log(5 / 5)), (COPOD, np.log(5))])
def test_ecod_a_symmetric_feature_counts_both_tails(cls, expected):
    """Training −2, −1, 1, 2; the sample 3 has P(X ≥ 3) = 1/5 and P(X ≤ 3) = 1."""
    train = given(features=[[-2.0], [-1.0], [1.0], [2.0]])
    x = given(features=[[3.0]])
    assert float(cls().fit(train, None).score(x)) == pytest.approx(expected)


def links(point: np.ndarray, neighbours: np.ndarray) -> float:
    """Weighted costs: each neighbour, nearest first, is linked to the nearest of those before it."""
    k, path, total = len(neighbours), [point, *neighbours], 0.0
    for j in range(1, k + 1):
        cheapest = np.linalg.norm(path[j] - np.array(path[:j]), axis=1).min()
        total += 2 * (k + 1 - j) / (k * (k + 1)) * cheapest
    return total


def by_hand(train: np.ndarray, rows: np.ndarray, k: int) -> list[float]:
    def nearest(point, of):
        return np.argsort(np.linalg.norm(of - point, axis=1), kind="stable")[:k]

    others = [train[~(train == point).all(axis=1)] for point in train]
    own = np.array([links(point, of[nearest(point, of)]) for point, of in zip(train, others, strict=True)])
    return [k * links(row, train[mine]) / own[mine].sum() for row in rows for mine in [nearest(row, train)]]


@equals(COF(k=1), COF(k=7), COF(k=20), kinds=["rectified", "signed"], n=80)
def test_cof_equals_links_counted_one_by_one(data, method):
    return by_hand(f(data.train), f(data.test)[:25], method.k)


def test_cof_copies_of_a_sample_pay_nothing():
    """Eight copies of 0 and one sample at 1: beside the copies anything is infinitely far, a copy is not."""
    train = [[0.0]] * 8 + [[1.0]]
    found = COF(k=3).fit(given(features=train), None).score(given(features=[[0.0], [0.5]]))
    assert found[0] == 0
    assert found[1] == torch.finfo(torch.float32).max


def reference_set(train: np.ndarray, row: np.ndarray, k: int, size: int) -> list[int]:
    """The samples that share most neighbours with `row`; of equals, the nearest."""

    def neighbours(point, own=None):
        away = np.linalg.norm(train - point, axis=1)
        order = [i for i in np.argsort(away, kind="stable") if i != own]
        return set(order[:k])

    mine, away = neighbours(row), np.linalg.norm(train - row, axis=1)
    shared = [len(mine & neighbours(train[i], i)) for i in range(len(train))]
    return sorted(range(len(train)), key=lambda i: (-shared[i], away[i]))[:size]


def deviation(train: np.ndarray, row: np.ndarray, chosen: list[int], alpha: float) -> float:
    total, kept = 0.0, 0
    columns = train[chosen].T
    bound = alpha * np.mean([np.mean((c - c.mean()) ** 2) for c in columns])
    for value, column in zip(row, columns, strict=True):
        if np.mean((column - column.mean()) ** 2) < bound:
            total, kept = total + (value - column.mean()) ** 2, kept + 1
    return np.sqrt(total / kept) if kept else 0.0


@equals(SOD(20, 10, 0.8), SOD(5, 5, 0.3), kinds=["rectified", "signed", "dead"], n=80)
def test_sod_equals_reference_sets_counted_one_by_one(data, method):
    train, k, size = f(data.train), method.k, method.l
    return [deviation(train, row, reference_set(train, row, k, size), method.alpha) for row in f(data.test)[:15]]


def test_sod_without_a_tight_feature_the_score_is_zero():
    """One feature: its variance is the mean variance, hence never below α times it."""
    train = np.random.default_rng(0).normal(size=(50, 1))
    assert SOD().fit(given(features=train), None).score(given(features=[[9.0]])).item() == 0


def drawn(n=400, d=6, seed=0):
    """Samples near a curve, so that one number can code them, and uniform noise around it."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, size=n)
    curve = np.stack([np.sin((j + 1) * t / 2) for j in range(d)], axis=1) + 0.02 * rng.normal(size=(n, d))
    return curve, rng.uniform(-1.5, 1.5, size=(n, d))


def test_dagmm_moments_of_shared_memberships_are_an_m_step_of_scikit_learn():
    z = np.random.default_rng(0).normal(size=(200, 2))
    model = GaussianMixture(3, random_state=0, max_iter=1, reg_covar=1e-6, warm_start=True)
    membership = np.random.default_rng(1).dirichlet(np.ones(3), size=200)
    model._initialize(z, membership)
    mixture = Mixture.of(torch.tensor(z), torch.tensor(membership))
    np.testing.assert_allclose(mixture.share, model.weights_, rtol=1e-6)
    np.testing.assert_allclose(mixture.mean, model.means_, rtol=1e-6)
    np.testing.assert_allclose(mixture.covariance, model.covariances_, rtol=1e-6, atol=1e-9)


def test_dagmm_energy_is_minus_the_log_density_of_the_mixture():
    rng = np.random.default_rng(0)
    mixture = Mixture.of(torch.tensor(rng.normal(size=(80, 3))), torch.tensor(rng.dirichlet(np.ones(4), size=80)))
    # Far out too, where densities underflow.
    z = rng.normal(size=(50, 3)) * np.linspace(1, 60, 50)[:, None]
    parts = zip(mixture.share.numpy(), mixture.mean.numpy(), mixture.covariance.numpy(), strict=True)
    expected = -logsumexp([np.log(p) + multivariate_normal(m, c).logpdf(z) for p, m, c in parts], axis=0)
    np.testing.assert_allclose(mixture.energy(torch.tensor(z)), expected, rtol=1e-9)


def test_dagmm_the_code_is_followed_by_relative_distance_and_cosine():
    torch.manual_seed(0)
    network = Compression(5, 2, 3).eval()
    x = torch.randn(7, 5)
    z, membership, rebuilt = (t.detach().numpy() for t in network(x))
    np.testing.assert_allclose(z[:, :2], network.encoder(x).detach(), rtol=1e-6)
    rows = x.numpy()
    np.testing.assert_allclose(
        z[:, 2], np.linalg.norm(rows - rebuilt, axis=1) / np.linalg.norm(rows, axis=1), rtol=1e-5
    )
    cosine = (rows * rebuilt).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(rebuilt, axis=1)
    np.testing.assert_allclose(z[:, 3], cosine, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(membership.sum(axis=1), 1, rtol=1e-6)


def test_dagmm_the_loss_is_error_plus_energy_plus_inverse_variances():
    torch.manual_seed(0)
    network, x = Compression(5, 1, 2).eval(), torch.randn(40, 5)
    z, membership, rebuilt = (t.detach().double().numpy() for t in network(x))
    energy, inverse = [], 0.0
    means = (membership.T @ z) / membership.sum(axis=0)[:, None]
    for k in range(2):
        apart = z - means[k]
        covariance = (membership[:, k, None] * apart).T @ apart / membership[:, k].sum() + 1e-6 * np.eye(3)
        inverse += (1 / np.diag(covariance)).sum()
        energy.append(np.log(membership[:, k].mean()) + multivariate_normal(means[k], covariance).logpdf(z))
    expected = ((x.numpy() - rebuilt) ** 2).mean() - 0.3 * logsumexp(energy, axis=0).mean() + 0.07 * inverse
    found = DAGMM(energy_weight=0.3, covariance_weight=0.07, latent=1, components=2)._loss(network, x)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_dagmm_training_finds_what_an_untrained_network_does_not():
    """ADBench's figures are of an untrained one."""
    inside, outside = drawn()
    test_inside, _ = drawn(seed=1)
    test, truth = given(features=np.concatenate([test_inside, outside])), [0] * len(test_inside) + [1] * len(outside)
    auroc = {}
    for epochs, rate in ((30, 5e-3), (1, 1e-12)):
        method = DAGMM(epochs=epochs, learning_rate=rate, batch=100).fit(given(features=inside), None)
        auroc[epochs] = roc_auc_score(truth, method.score(test).numpy())
    assert auroc[30] > 0.95
    assert auroc[1] < auroc[30] - 0.02


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
def test_pyod_equals_an_implementation_of_its_own_up_to_a_constant(name):
    found, expected = scores(PyOD(name), DATA), EXPECTED[name]()
    assert_equal(found - found.mean(), expected - expected.mean(), rtol=1e-4)


@installed
def test_pyod_what_a_detector_refuses_is_a_method_error_that_names_it():
    """Four planted clusters of equal size: none is large beside the others."""
    with pytest.raises(MethodError, match=r"CBLOF refuses \(480, 32\) features"):
        PyOD("CBLOF").fit(planted(seed=1, classes=4, free=16).train, None)


@installed
def test_pyod_principal_components_without_variance_are_refused_and_not_scored_alike():
    """Divided by a variance of 0 every distance is infinite, and an AUROC of .5 would look like a result."""
    flat = torch.cat([torch.tensor(TRAIN), torch.ones(len(TRAIN), 2, dtype=torch.float64)], dim=1).float()
    with pytest.raises(MethodError, match=rf"PCA gives {len(TRAIN)} of {len(TRAIN)} training samples .*not finite"):
        PyOD("PCA").fit(given(features=flat), None)
    assert PyOD("HBOS").fit(given(features=flat), None).detector_ is not None


def test_pyod_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotApplicableError, match=r"pip install .*\[pyod\]'"):
        PyOD("OCSVM")


@installed
def test_pyod_a_detector_is_fitted_on_a_seeded_subset_where_there_are_more_samples():
    fitted = PyOD("KNN", max_train=50).fit(DATA.train, None)
    chosen = np.sort(np.random.default_rng(0).choice(len(TRAIN), 50, replace=False))
    expected = NearestNeighbors(n_neighbors=5).fit(TRAIN[chosen]).kneighbors(TEST)[0][:, -1]
    assert_equal(fitted.score(DATA.test), expected)
    other = PyOD("KNN", seed=1, max_train=50).fit(DATA.train, None)
    assert not torch.equal(fitted.score(DATA.test), other.score(DATA.test))
