import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from openbench.methods.subspaces import NECO

from .problems import KINDS, assert_equal, f, given, problem, scores, z


def by_sklearn(data, dim: int, standardise: bool) -> np.ndarray:
    """Share of the length inside the subspace: scaler and PCA as the authors' code uses them."""
    train, test = f(data.train), f(data.test)
    if standardise:
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
    inside = PCA(dim, svd_solver="full").fit(train).transform(test)
    return np.linalg.norm(inside, axis=1) / np.linalg.norm(test, axis=1)


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("dim", [1, 8, 15])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scaler_and_pca_of_sklearn(kind, dim, standardise):
    data = problem(kind)
    share = by_sklearn(data, dim, standardise)
    assert_equal(scores(NECO(dim, standardise, max_logit=False), data), -share, rtol=1e-4)
    assert_equal(scores(NECO(dim, standardise), data), -share * z(data.test).max(axis=1), rtol=1e-4)


@pytest.mark.parametrize("kind", ["rectified", "signed", "dead"])
def test_auto_takes_the_fewest_directions_that_hold_nine_tenths(kind):
    data = problem(kind)
    train = StandardScaler().fit_transform(f(data.train))
    held = np.cumsum(PCA().fit(train).explained_variance_ratio_)
    dim = int(np.argmax(held >= 0.9)) + 1
    assert 1 < dim < 23
    assert_equal(scores(NECO(), data), scores(NECO(dim), data))


def test_constant_features_count_for_nothing_whatever_a_sample_has_there():
    data = problem("dead")
    fitted = NECO().fit(data.train, None)
    moved = data.test.features.clone()
    moved[:, :4] += 5
    before, after = (fitted.score(given(features=x, logits=data.test.logits)) for x in (data.test.features, moved))
    assert torch.equal(before, after)


@pytest.mark.parametrize("standardise", [True, False])
def test_a_feature_without_length_scores_nothing(standardise):
    """The mean of features with exact sums, or the zero vector: 0/0 otherwise."""
    features = torch.tensor([[1.0, 2.0, 4.0], [3.0, 2.5, 0.0], [2.0, 3.0, 2.0], [2.0, 2.5, 2.0]])
    x = given(features=features, logits=torch.ones(4, 2))
    point = features.mean(dim=0, keepdim=True) if standardise else torch.zeros(1, 3)
    fitted = NECO(1, standardise).fit(x, None)
    found = fitted.score(given(features=point, logits=torch.ones(1, 2)))
    assert bool(found.isfinite().all())
    assert not standardise or found.item() == 0
