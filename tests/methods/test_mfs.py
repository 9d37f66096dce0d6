"""MFS against scipy's Wasserstein distance, scikit-learn's covariance and neighbours, written out as the authors do."""

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors

from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet, Head
from openbench.core.request import Mixing, Request, Role
from openbench.engine.evaluate import Fitting, fit
from openbench.errors import ConfigError
from openbench.methods.mfs import MFSKNN, MFSMDS, marginal_distances

from ..features.feature_toys import toy_backbone, toy_split  # noqa: TID252 — the tests are no package
from .problems import changed, given, unit

D = 20


@pytest.fixture(scope="module")
def problem() -> tuple[FeatureSet, FeatureSet]:
    """Three classes; features that mixing moves by very different amounts and whose ranges differ."""
    rng = np.random.default_rng(0)
    labels = rng.permuted(np.arange(120) % 3)
    scale = np.geomspace(0.1, 10, D)
    train = (rng.normal(size=(120, D)) + rng.normal(size=(3, D))[labels]) * scale
    mixed = train + scale * rng.permuted(np.linspace(0.1, 3, D)) * rng.random((120, 1))
    test = rng.normal(size=(30, D)) * scale * 2
    return given(features=train, mixed=mixed, labels=labels), given(features=test)


def chosen(train: np.ndarray, mixed: np.ndarray, share: float) -> np.ndarray:
    distances = [wasserstein_distance(train[:, j], mixed[:, j]) for j in range(train.shape[1])]
    return np.sort(np.argsort(distances)[::-1][: max(int(share * train.shape[1]), 1)])


def nearest_mean(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    means = np.stack([train[labels == c].mean(axis=0) for c in range(3)])
    precision = EmpiricalCovariance(assume_centered=True).fit(train - means[labels]).precision_
    differences = test[:, None] - means
    return np.einsum("ncd,de,nce->nc", differences, precision, differences).min(axis=1)


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("normalise", [False, True])
def test_mahalanobis_in_the_features_that_mixing_moves_most(problem, share: float, normalise: bool):
    train, test = problem
    features, mixed, rows = (x.double().numpy() for x in (train.features, train.mixed, test.features))
    if normalise:
        features, mixed, rows = unit(features), unit(mixed), unit(rows)
        keep = chosen(features, mixed, share)
    else:
        low, spread = features.min(axis=0), np.ptp(features, axis=0)
        keep = chosen((features - low) / spread, (mixed - low) / spread, share)
    expected = nearest_mean(features[:, keep], train.labels.numpy(), rows[:, keep])
    method = MFSMDS(share=share, normalise=normalise).fit(train, None)
    assert method.chosen_.tolist() == keep.tolist()
    np.testing.assert_allclose(method.score(test), expected, rtol=2e-4)
    np.testing.assert_allclose(method.class_scores(test).min(dim=1).values, expected, rtol=2e-4)


def test_neighbours_in_the_features_that_mixing_moves_most(problem):
    train, test = problem
    features, mixed, rows = (unit(x.double().numpy()) for x in (train.features, train.mixed, test.features))
    keep = chosen(features, mixed, 0.3)
    distances, _ = NearestNeighbors(n_neighbors=4).fit(features[:, keep]).kneighbors(rows[:, keep])
    method = MFSKNN(share=0.3, k=4).fit(train, None)
    np.testing.assert_allclose(method.score(test), distances[:, -1] ** 2, rtol=1e-4)


def test_a_feature_that_is_constant_in_training_comes_last(problem):
    train, _ = problem
    features = train.features.clone()
    features[:, 3] = 1.0
    constant = changed(train, features=features)
    assert 3 not in MFSMDS(share=0.95).fit(constant, None).chosen_


def test_columns_are_sorted_a_few_at_a_time(problem, monkeypatch):
    train, _ = problem
    whole = marginal_distances(train.features, train.mixed)
    monkeypatch.setattr("openbench.methods.mfs._AT_ONCE", 3 * len(train))
    torch.testing.assert_close(marginal_distances(train.features, train.mixed), whole, rtol=0, atol=0)


def test_the_engine_gives_fit_the_mixed_copies_and_score_nothing_of_them():
    asked: list[tuple[str, object]] = []

    class Source:
        def __call__(self, split: Split, request: Request) -> FeatureSet:
            asked.append((split.name, request.mixing))
            rows = torch.arange(2.0 * len(split)).reshape(-1, 2) % 7
            return given(features=rows, labels=torch.arange(len(split)) % 2)

        def mixed(self, split: Split, others: Split, mixing: Mixing) -> torch.Tensor:
            asked.append((others.name, mixing))
            return torch.ones(len(split), 2)

    train, val, proxy = toy_split(20, 1, Role.ID_TRAIN), toy_split(10, 2, Role.ID_VAL), toy_split(10, 3, Role.OOD_VAL)
    head = Head(torch.eye(2), torch.zeros(2))
    fit(MFSKNN(share=0.5, seed=4), Fitting(train, val, head, proxy), Source(), torch.device("cpu"))
    assert asked == [(train.name, None), (proxy.name, Mixing((0.25, 0.5, 0.75), 4))]
    with pytest.raises(ConfigError, match="mixed with OOD validation images, and there are none"):
        fit(MFSKNN(), Fitting(train, val, toy_backbone().head), Source(), torch.device("cpu"))
