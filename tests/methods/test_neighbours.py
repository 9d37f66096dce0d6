"""Nearest neighbours, against scikit-learn and loops."""

import heapq
import itertools

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.special import logsumexp, softmax
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import PowerTransformer, StandardScaler

from openbench.engine.run import plain_params
from openbench.methods import _bank, neighbours
from openbench.methods._bank import Bank
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP
from openbench.methods.neighbours import CFOOD, OODD, CombOOD, NNGuide, Relation, best_exponents

from .problems import (
    KINDS,
    assert_equal,
    equals,
    f,
    given,
    kinds_but,
    problem,
    scores,
    unit,
    y,
    z,
)


def brute(bank, k: int) -> NearestNeighbors:
    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(np.asarray(bank, dtype=np.float64))


def test_bank_a_zero_vector_in_a_bank_of_directions_is_at_distance_one():
    """Its cosine of 0 would put it beyond everything within a right angle, at 2."""
    bank = torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.0, 3.0]])
    found = [float(Bank(bank, unit=True).kth_squared_distance(torch.tensor([[1.0, 0.0]]), k)) for k in (1, 2, 3)]
    assert found == pytest.approx([0.8, 1.0, 2.0])


def test_bank_exact_order_is_that_of_distances_where_products_round():
    """1e8 from the origin, products of float64 are good to 1: they leave the order of distances below 1 open."""
    generator = torch.Generator().manual_seed(0)
    bank = 1e8 + torch.randn(50, 3, generator=generator, dtype=torch.float64)
    queries = 1e8 + torch.randn(20, 3, generator=generator, dtype=torch.float64)
    apart = (queries[:, None] - bank).square().sum(dim=2)
    rows = Bank(bank).nearest_exactly(queries, 50)
    assert torch.equal(rows, apart.argsort(dim=1))
    assert not torch.equal(Bank(bank).nearest(queries, 50), rows)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("k", [1, 7, 239])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # blocks of either have their own size
def test_bank_neighbours_among_the_others_equal_sklearns(dtype, k, blocks, monkeypatch):
    if blocks:
        for name, size in (("_BANK_CHUNK", 37), ("_QUERY_CHUNK", 11), ("_ENTRIES", 1000)):
            monkeypatch.setattr(_bank, name, size)
    data = problem("signed", 240)
    found = Bank(data.train.features).nearest_exactly(data.train.features.to(dtype), k, own=True)
    distances, expected = brute(f(data.train), k).kneighbors()
    if dtype == torch.float64:  # in single precision neighbours as far as another change places
        np.testing.assert_array_equal(found, expected)
    assert bool((found != torch.arange(len(found))[:, None]).all())
    apart = np.linalg.norm(f(data.train)[found] - f(data.train)[:, None], axis=2)
    np.testing.assert_allclose(apart, distances, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_bank_no_sample_is_its_own_neighbour_among_its_copies(k):
    """Four copies each of 0, 1 and 10: three others at no distance, then the next group."""
    values = torch.tensor([0.0, 1.0, 10.0]).repeat(4)[:, None].double()
    rows = Bank(values).nearest(values, k, own=True)
    assert bool((rows != torch.arange(12)[:, None]).all())
    assert all(len(set(row)) == k for row in rows.tolist())
    apart = (values[rows] - values[:, None])[:, :, 0].abs()
    expected = {
        0.0: [0, 0, 0, 1, 1, 1, 1, 10, 10],
        1.0: [0, 0, 0, 1, 1, 1, 1, 9, 9],
        10.0: [0, 0, 0, 9, 9, 9, 9, 10, 10],
    }
    assert apart.tolist() == [expected[float(value)][:k] for value in values]


@pytest.mark.parametrize("columns", [64, 70, 3215])
@pytest.mark.parametrize("digits", [7, 1], ids=["", "ties"])
def test_bank_the_largest_of_few_groups_are_the_largest_of_all(columns, digits):
    rows = np.round(np.random.default_rng(0).normal(size=(6, columns)), digits).astype(np.float32)
    k = columns // 64
    values, places = _bank._largest(torch.from_numpy(rows), k)
    np.testing.assert_array_equal(values, -np.sort(-rows, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(rows, places.numpy(), axis=1), values)
    assert all(len(set(row)) == k for row in places.tolist())


def knn_by_sklearn(data, method: KNN) -> np.ndarray:
    train, test = (unit(f(x)) if method.normalise else f(x) for x in (data.train, data.test))
    return NearestNeighbors(n_neighbors=method.k, algorithm="kd_tree").fit(train).kneighbors(test)[0][:, -1] ** 2


# All training samples are as many neighbours as there can be.
test_knn_equals_sklearn = equals(
    *itertools.starmap(KNN, [(1,), (240,), (50, "exact", 16, False), (240, "faiss_flat")]),
    *itertools.starmap(KNN, [(1, "faiss_flat", 16, False), (50, "ivf", 24, False)]),
    n=240,
)(knn_by_sklearn)


def test_knn_distance_of_near_duplicates_keeps_its_digits():
    """2 − 2cos in float32 would round distances of 1e-8 to multiples of 1e-7."""
    angle = torch.linspace(1e-4, 5e-4, 20, dtype=torch.float64)
    bank = given(features=[[1.0, 0.0], [-1.0, 0.0]])
    queries = given(features=torch.stack([angle.cos(), angle.sin()], dim=1).float())
    found = KNN(1).fit(bank, None).score(queries)
    np.testing.assert_allclose(found.double(), 4 * (angle / 2).sin() ** 2, rtol=1e-3)


@pytest.mark.parametrize(("index", "least"), [("ivf", 0.9), ("hnsw", 0.99)])
def test_knn_approximate_indices_find_most_neighbours(index, least):
    data = problem(n=2000)
    exact, found = (KNN(20, index=name).fit(data.train, None).neighbours(data.test) for name in ("exact", index))
    hits = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(hits) / 20 >= least


def test_knn_queries_for_which_the_probed_lists_hold_fewer_than_k_are_searched_exactly():
    """24 lists of about 25 samples hold no 200 neighbours."""
    method, data = KNN(200, index="ivf", probes=1), problem()
    assert_equal(scores(method, data), knn_by_sklearn(data, method))


@pytest.mark.parametrize("index", ["exact", "faiss_flat", "hnsw"])
def test_knn_a_zero_feature_is_at_distance_one_from_every_direction(index):
    data = problem()
    zero = given(features=torch.zeros(3, 24))
    found = KNN(10, index=index).fit(data.train, None).score(zero)
    torch.testing.assert_close(found, torch.ones(3))


def test_knn_a_common_offset_costs_no_digits():
    """Squares of 1e3 in float32 are good to 0.06; the distances between samples are of order 1."""
    data = problem("signed")
    far = [given(features=x.features + 1000) for x in (data.train, data.test)]
    moved = KNN(5, normalise=False).fit(far[0], None).score(far[1])
    near = NearestNeighbors(n_neighbors=5).fit(f(far[0])).kneighbors(f(far[1]))[0][:, -1] ** 2
    assert_equal(moved, near, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 7, 600])
@pytest.mark.parametrize("normalise", [True, False])
def test_knn_class_scores_are_distances_within_each_class(normalise, k):
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


def test_knn_the_option_shows_in_a_record_only_where_it_is_used():
    """Records made before it existed must still be reproduced."""
    assert set(plain_params(KNN())) == {"k", "index", "probes"}
    assert plain_params(KNN(normalise=False))["normalise"] is False
    assert plain_params(DoubleScore(MSP(), KNN()))["ood"] == "KNN(k=50, index='exact', probes=16)"


@pytest.mark.parametrize("kind", KINDS)
def test_knn_few_queries_find_what_many_find(kind):
    """Their products are divided by the lengths of training features, which for many are scaled first."""
    data = problem(kind)
    method = KNN(7).fit(data.train, None)
    few = method.score(data.test[torch.arange(100)])
    torch.testing.assert_close(few, method.score(data.test)[:100], rtol=1e-5, atol=1e-7)


def nnguide_by_loops(data, bank: np.ndarray, k: int) -> np.ndarray:
    features, energy = f(data.train)[bank], logsumexp(z(data.train)[bank], axis=1)
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        cosines = features @ row / (np.linalg.norm(features, axis=1) * np.linalg.norm(row))
        result.append(-logsumexp(logits) * np.sort(cosines * energy)[-k:].mean())
    return np.array(result)


def bank_of(method: NNGuide, data) -> np.ndarray:
    """The training samples whose guidance was kept."""
    guides = method.fit(data.train, None).guides_.double().numpy()
    own = unit(f(data.train)) * logsumexp(z(data.train), axis=1)[:, None]
    distances = np.abs(guides[:, None] - own).max(axis=2)
    assert distances.min(axis=1).max() < 1e-4
    return distances.argmin(axis=1)


@equals(*(NNGuide(50, alpha, "first") for alpha in (0.01, 0.34, 1.0)), kinds=kinds_but("many_classes"), n=600)
def test_nnguide_the_first_samples_up_to_a_whole_batch_equal_loops(data, method):
    return nnguide_by_loops(data, np.arange({0.01: 200, 0.34: 400, 1.0: 600}[method.alpha]), 50)


@pytest.mark.parametrize("seed", [0, 1])
def test_nnguide_a_balanced_bank_holds_equally_many_of_each_class(seed):
    data = problem(n=600)
    method = NNGuide(k=100, alpha=0.01, seed=seed)
    chosen = bank_of(method, data)
    assert np.bincount(y(data.train)[chosen], minlength=6).tolist() == [20, 20, 20, 0, 20, 20]
    assert len(np.unique(chosen)) == 100
    assert_equal(scores(method, data), nnguide_by_loops(data, chosen, 100))


def relation_by_loops(data, power: float, threshold: float) -> np.ndarray:
    bank, bank_p = f(data.train), softmax(z(data.train), axis=1)
    result = []
    for row, p in zip(f(data.test), softmax(z(data.test), axis=1), strict=True):
        cosines = bank @ row / np.sqrt((bank**2).sum(axis=1) * (row @ row))
        relations = np.maximum(cosines, 0) * (bank_p @ p)
        result.append(-(relations[relations > threshold] ** power).sum())
    return np.array(result)


@pytest.mark.parametrize(("power", "threshold"), [*((p, 0.03) for p in (0, 1, 2, 8)), (1, 0.0), (1, 0.5)])
@pytest.mark.parametrize("kind", ["rectified", "signed", "hot", "two_classes", "dead"])
def test_relation_equals_one_sample_at_a_time(kind, power, threshold):
    data = problem(kind, n=120)
    expected = relation_by_loops(data, power, threshold)
    # One relation within float32 of the threshold may fall on either side of it.
    apart = 1.01 * threshold**power + 1e-5
    np.testing.assert_allclose(scores(Relation(power, threshold), data), expected, rtol=1e-5, atol=apart)


GRID = [*np.linspace(0.001, 0.1, 100), *np.linspace(0.105, 0.5, 81), *np.linspace(0.51, 0.99, 49)]


# 0.07 · 300 is a little more than 21 in floating point, and 21 references are enough.
@equals(CFOOD(1, 0.0115), CFOOD(1, 0.07), CFOOD(1, 0.5), kinds=["rectified", "signed", "dead"])
def test_cfood_equals_growing_neighbourhoods(data, method):
    """With all training samples as references: grow the neighbourhoods until enough of them hold the sample."""
    references, m = unit(f(data.train)), len(data.train)
    own = np.sort(np.linalg.norm(references[:, None] - references, axis=2), axis=1)
    found = []
    for row in unit(f(data.test)):
        distances = np.linalg.norm(references - row, axis=1)
        kappa = 1.0
        for candidate in GRID:
            neighbour = max(int(candidate * m - 1), 0) + 1  # the sample itself is the zeroth
            if np.mean(distances <= own[:, neighbour]) >= method.share:
                kappa = candidate
                break
        found.append(kappa)
    assert len(set(found)) > 10
    return found


def test_cfood_references_are_a_seeded_share_of_training_samples():
    data = problem(n=500)
    fitted = CFOOD(0.1, seed=3).fit(data.train, None)
    rows = {tuple(row) for row in np.round(unit(f(data.train)), 6)}
    assert fitted.references_.shape == (50, 24)
    assert {tuple(row) for row in np.round(fitted.references_.numpy(), 6)} <= rows
    assert not torch.equal(fitted.references_, CFOOD(0.1, seed=4).fit(data.train, None).references_)


def test_cfood_a_sample_that_no_reference_reaches_scores_one():
    """References close together; the sample on the far side of the sphere."""
    rows = torch.eye(8)[:1] + 0.01 * torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    fitted = CFOOD(1.0).fit(given(features=rows), None)
    assert fitted.score(given(features=-rows[:3])).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", ["signed", "rectified"])
def test_combood_equals_the_steps_with_sklearn(kind):
    """Scaler, power transform, covariance plus identity, brute-force neighbours: the authors' steps."""
    data = problem(kind, n=300)
    train, test = unit(f(data.train)), unit(f(data.test[:50]))
    scaler, power = StandardScaler(), PowerTransformer()
    shaped = power.fit_transform(scaler.fit_transform(train))
    inverse = np.linalg.inv(np.cov(shaped, rowvar=False) + np.identity(24))
    far = np.array([mahalanobis(row, np.zeros(24), inverse) ** 2 for row in power.transform(scaler.transform(test))])
    for k in (1, 50):
        distance = brute(train, k).kneighbors(test)[0][:, -1]
        assert_equal(scores(CombOOD(k), data)[:50], np.sqrt(24) * np.log(distance**2) + far, rtol=2e-4)


def test_combood_exponents_maximise_the_likelihood():
    """Against scipy's search, for shapes that want exponents from −6 to 8."""
    from scipy.stats import yeojohnson_normmax

    rng = np.random.default_rng(0)
    x = np.stack(
        [
            np.expm1(rng.normal(size=2000)),
            -np.expm1(rng.normal(size=2000)),
            rng.normal(size=2000),
            rng.exponential(size=2000) ** 2,
            rng.beta(8, 1, size=2000),
            0.01 * rng.normal(size=2000),
        ],
        axis=1,
    )
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    found = best_exponents(torch.tensor(x).split(300), 2000)
    np.testing.assert_allclose(found, [yeojohnson_normmax(column) for column in x.T], atol=1e-3)


def test_combood_constant_features_count_for_nothing():
    """The four constant features of unit-length vectors vary; only those that are always zero stay constant."""
    data = problem("dead")
    kept = [j for j in range(24) if j not in (0, 2)]
    whole = CombOOD().fit(given(features=data.train.features), None)
    assert whole.scale_[[0, 2]].tolist() == [0.0, 0.0]
    part = CombOOD().fit(given(features=data.train.features[:, kept]), None)
    mahalanobis_part = [
        m.score(given(features=x)) for m, x in ((whole, data.test.features), (part, data.test.features[:, kept]))
    ]
    # Same neighbours and same white vectors; only √d differs.
    far = whole.bank_.kth_squared_distance(torch.nn.functional.normalize(data.test.features), 50).log()
    torch.testing.assert_close(
        mahalanobis_part[0] - mahalanobis_part[1], (24**0.5 - 22**0.5) * far, rtol=1e-3, atol=1e-3
    )


def by_queue(data, method: OODD) -> np.ndarray:
    """One image after the other, with Python's priority queue, as the paper's algorithm reads."""
    confidence, labels = softmax(z(data.train), axis=1).max(axis=1), y(data.train)
    of_class = [sorted(np.flatnonzero(labels == c), key=lambda i: -confidence[i]) for c in range(labels.max() + 1)]
    longest = max(map(len, of_class))
    order = [rows[turn] for turn in range(longest) for rows in of_class if turn < len(rows)]
    bank = unit(f(data.train))[order[: int(method.share * len(order))]]
    queue: list[tuple[float, int]] = []
    images, result = unit(f(data.test)), []
    for i, image in enumerate(images):
        similarity = np.sort(bank @ image)[-method.k1]
        heapq.heappush(queue, (-similarity, -i))
        if len(queue) > method.queue:
            heapq.heappop(queue)  # the most similar to ID; of equals the latest
        near = np.sort([images[-j] @ image for _, j in queue])[::-1]
        result.append(near[: method.k2][-1] - similarity)
    return np.array(result)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dead"])
@pytest.mark.parametrize("method", [OODD(), OODD(k1=3, k2=2, share=0.7, queue=20)], ids=["default", "small"])
def test_oodd_equals_one_image_after_the_other(kind, method, monkeypatch):
    data = problem(kind, n=300)
    monkeypatch.setattr(neighbours, "_BLOCK", 64)
    fitted = method.fit(data.train, None)
    memory = fitted.memory()
    found = torch.cat([fitted.score_next(rows, memory) for rows in data.test.without_labels().batches(110)])
    assert_equal(found.numpy(), by_queue(data, method), rtol=2e-5)
    assert len(memory.features) == len(memory.similarity) == method.queue


def test_oodd_of_equally_similar_images_the_first_stays():
    """One direction in different lengths: every image is the same, so the dictionary keeps the first ones."""
    data = problem("signed")
    method = OODD(queue=2, k2=1).fit(data.train, None)
    memory = method.memory()
    same = given(features=torch.ones(1, 24), logits=data.test.logits[:1])
    first = [method.score_next(same, memory) for _ in range(4)]
    assert len(memory.features) == 2
    assert len({float(score) for score in first}) == 1
