from functools import cache

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from openbench.engine.run import plain_params
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP

from .problems import KINDS, assert_equal, f, given, problem, scores, unit, y

problem_once = cache(problem)
# All training samples are as many neighbours as there can be; few samples show that as well as many.
SIZES = [(1, 600), (50, 600), (240, 240)]


@cache
def by_sklearn(kind: str, k: int, n: int, normalise: bool = True) -> np.ndarray:
    data = problem_once(kind, n)
    train, test = (unit(f(x)) if normalise else f(x) for x in (data.train, data.test))
    return NearestNeighbors(n_neighbors=k, algorithm="kd_tree").fit(train).kneighbors(test)[0][:, -1] ** 2


@pytest.mark.parametrize("index", ["exact", "faiss_flat"])
@pytest.mark.parametrize(("k", "n"), SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_sklearn(kind, k, n, index):
    assert_equal(scores(KNN(k, index=index), problem_once(kind, n)), by_sklearn(kind, k, n))


def test_distance_of_near_duplicates_keeps_its_digits():
    """2 − 2cos in float32 would round distances of 1e-8 to multiples of 1e-7."""
    angle = torch.linspace(1e-4, 5e-4, 20, dtype=torch.float64)
    bank = given(features=[[1.0, 0.0], [-1.0, 0.0]])
    queries = given(features=torch.stack([angle.cos(), angle.sin()], dim=1).float())
    found = KNN(1).fit(bank, None).score(queries)
    np.testing.assert_allclose(found.double(), 4 * (angle / 2).sin() ** 2, rtol=1e-3)


@pytest.mark.parametrize(("index", "least"), [("ivf", 0.9), ("hnsw", 0.99)])
def test_approximate_indices_find_most_neighbours(index, least):
    data = problem(n=4000)
    exact, found = (KNN(20, index=name).fit(data.train, None).neighbours(data.test) for name in ("exact", index))
    hits = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(hits) / 20 >= least


def test_queries_for_which_the_probed_lists_hold_fewer_than_k_are_searched_exactly():
    """24 lists of about 25 samples hold no 200 neighbours."""
    found = scores(KNN(200, index="ivf", probes=1), problem())
    assert_equal(found, by_sklearn("rectified", 200, 600))


@pytest.mark.parametrize("index", ["exact", "faiss_flat", "hnsw"])
def test_a_zero_feature_is_at_distance_one_from_every_direction(index):
    data = problem()
    zero = given(features=torch.zeros(3, 24))
    found = KNN(10, index=index).fit(data.train, None).score(zero)
    torch.testing.assert_close(found, torch.ones(3))


@pytest.mark.parametrize("index", ["exact", "faiss_flat", "ivf"])
@pytest.mark.parametrize(("k", "n"), SIZES)
@pytest.mark.parametrize("kind", ["rectified", "signed", "dead"])
def test_without_normalisation_equals_sklearn_on_the_features_themselves(kind, k, n, index):
    found = scores(KNN(k, index=index, probes=24, normalise=False), problem_once(kind, n))
    assert_equal(found, by_sklearn(kind, k, n, normalise=False))


def test_a_common_offset_costs_no_digits():
    """Squares of 1e3 in float32 are good to 0.06; the distances between samples are of order 1."""
    data = problem("signed")
    far = [given(features=x.features + 1000) for x in (data.train, data.test)]
    moved = KNN(5, normalise=False).fit(far[0], None).score(far[1])
    near = NearestNeighbors(n_neighbors=5).fit(f(far[0])).kneighbors(f(far[1]))[0][:, -1] ** 2
    assert_equal(moved, near, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 7, 600])
@pytest.mark.parametrize("normalise", [True, False])
def test_class_scores_are_distances_within_each_class(normalise, k):
    data = problem("signed")
    train, test = (unit(f(x)) if normalise else f(x) for x in (data.train, data.test))
    found = KNN(k, normalise=normalise).fit(data.train, None).class_scores(data.test).numpy()
    for c in range(found.shape[1]):
        own = train[y(data.train) == c]
        if len(own):
            expected = NearestNeighbors(n_neighbors=min(k, len(own))).fit(own).kneighbors(test)[0][:, -1] ** 2
            assert_equal(found[:, c], expected)
        else:
            assert np.isinf(found[:, c]).all()


def test_the_option_shows_in_a_record_only_where_it_is_used():
    """Records made before it existed must still be reproduced."""
    assert set(plain_params(KNN())) == {"k", "index", "probes"}
    assert plain_params(KNN(normalise=False))["normalise"] is False
    assert plain_params(DoubleScore(MSP(), KNN()))["ood"] == "KNN(k=50, index='exact', probes=16)"


@pytest.mark.parametrize("kind", KINDS)
def test_few_queries_find_what_many_find(kind):
    """Their products are divided by the lengths of training features, which for many are scaled first."""
    data = problem(kind)
    method = KNN(7).fit(data.train, None)
    few = method.score(data.test[torch.arange(100)])
    torch.testing.assert_close(few, method.score(data.test)[:100], rtol=1e-5, atol=1e-7)
