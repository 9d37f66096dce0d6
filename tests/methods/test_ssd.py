import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance
from sklearn.preprocessing import StandardScaler, normalize

from openbench.errors import MethodError
from openbench.methods.gaussians import SSD, _gaussian

from .problems import KINDS, assert_blocks_leave_no_trace, assert_equal, f, given, problem, scores, y


def by_sklearn(data, members: np.ndarray) -> np.ndarray:
    """Unit features, standardised, and a Gaussian per cluster, all by sklearn."""
    scaler = StandardScaler().fit(normalize(f(data.train)))
    train, test = (scaler.transform(normalize(f(x))) for x in (data.train, data.test))
    return np.min(
        [EmpiricalCovariance().fit(train[members == m]).mahalanobis(test) for m in np.unique(members)], axis=0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_one_cluster_equals_sklearns_empirical_covariance(kind):
    data = problem(kind)
    assert_equal(scores(SSD(), data), by_sklearn(data, np.zeros(len(data.train))), rtol=1e-4)


@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes"])
def test_labels_as_clusters_equal_sklearns_covariances(kind):
    data = problem(kind)
    assert_equal(scores(SSD("labels"), data), by_sklearn(data, y(data.train)), rtol=1e-4)


def test_chunks_of_the_fit_leave_no_trace(monkeypatch):
    assert_blocks_leave_no_trace(SSD("labels"), problem(), monkeypatch, FIT_BATCH=37)


def test_k_means_finds_clusters_that_are_far_apart():
    """Three directions a hundred deviations apart: its clusters are those planted, so it scores as they do."""
    rng = np.random.default_rng(0)
    planted = rng.integers(3, size=400)
    features = 10 * np.eye(8)[planted] + 0.1 * rng.normal(size=(400, 8))
    train, test = given(features=features, labels=planted), given(features=rng.normal(size=(50, 8)))
    starts = (SSD(3, seed=seed).fit(train, None) for seed in range(4))
    found = [method.score(test) for method in starts]
    expected = SSD("labels").fit(train, None).score(test)
    assert sum(torch.allclose(x, expected, rtol=1e-3) for x in found) >= 1, "no start finds them"


def test_a_cluster_of_one_sample_or_of_equal_ones_counts_for_nothing():
    data = problem("signed")
    features = torch.cat([data.train.features, torch.full((3, 24), 7.0)])
    labels = torch.cat([data.train.labels, torch.tensor([6, 6, 7])])
    more = given(features=features, labels=labels)
    fitted = SSD("labels").fit(more, None)
    assert len(fitted.means_) == len(data.train.labels.unique())
    assert float(fitted.score(data.test).min()) > 0


def test_clusters_that_do_not_vary_and_more_clusters_than_samples_are_refused():
    distinct = given(features=torch.eye(4), labels=torch.arange(4))
    with pytest.raises(MethodError, match=r"do not vary within clusters .4 samples in 4 clusters"):
        SSD("labels").fit(distinct, None)
    with pytest.raises(MethodError, match="clusters — found 5, allowed: 1 to 4"):
        SSD(5).fit(distinct, None)


def test_a_small_cluster_far_from_the_origin_has_the_rank_of_its_samples():
    """Three samples span two directions; the squares of a mean a thousand deviations away leave no third."""
    rows = torch.randn(3, 16, generator=torch.Generator().manual_seed(0)) / 10 + 100
    mean, whiten = _gaussian(iter([rows[:1], rows[1:]]), torch.zeros(3, dtype=torch.int64), 0)
    assert whiten.shape == (16, 2)
    torch.testing.assert_close(mean, rows.double().mean(dim=0), rtol=1e-12, atol=0)
    expected = np.linalg.pinv(np.cov(rows.double().numpy().T, bias=True), rcond=1e-10)
    np.testing.assert_allclose((whiten @ whiten.T).numpy(), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
