"""KNN's shortlist for single queries: it holds the nearest, and the search finds what a search of everything does."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.methods import _shortlist
from openbench.methods._bank import Bank
from openbench.methods._shortlist import Shortlist
from openbench.methods.knn import KNN

K = 7


def vectors(count, seed, spread=0.05):
    """Three clusters in 8 of 40 directions, with some noise in all; (n, 40)."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(40, 8, generator=torch.Generator().manual_seed(1))).Q
    centres = 2 * torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    which = torch.randint(3, (count,), generator=generator)
    inside = centres[which] + torch.randn(count, 8, generator=generator)
    return inside @ axes.T + spread * torch.randn(count, 40, generator=generator) + 3


def along_axes(bank):
    """The shortlist that sees the first 16 numbers of each vector (m, 40), and how long the rest is."""
    axes, origin = torch.eye(40, dtype=torch.float64)[:, :16], torch.zeros(40, dtype=torch.float64)
    seen = _shortlist._seen(*_shortlist._along(bank, axes, origin))
    lengths = seen.square().sum(dim=1)
    offset, longest = (-lengths / 2).float(), float(lengths.max().sqrt())
    return Shortlist(Bank(bank).read_ahead(), seen.float().T.contiguous(), offset, axes, origin, longest)


@pytest.fixture(scope="module")
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shortlist, "_SMALLEST", 0)
        bank = torch.cat([vectors(3000, 0), vectors(20, 0).repeat(5, 1)])  # some of them six times
        return Shortlist.of(Bank(bank).read_ahead(), K)


QUERIES = {
    "like the bank": vectors(30, 5),
    "far away": vectors(10, 6) * 4 - 30,
    "of the bank": vectors(3000, 0)[:10],
    "beside all directions": vectors(10, 7, spread=2.0),
}


@pytest.mark.parametrize("name", QUERIES)
def test_what_a_search_in_double_precision_finds_is_on_the_list_and_found(short, name):
    queries = QUERIES[name]
    known = short.bank.vectors.double().numpy()
    search = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(known)
    apart, _ = search.kneighbors(queries.double().numpy())
    found = short.nearest(queries, K)
    for query, rows, distances in zip(queries, found, apart, strict=True):
        candidates = short.candidates(query[None], K)
        near = np.linalg.norm(known - query.double().numpy(), axis=1)
        within = set(np.flatnonzero(near < distances[-1] * (1 - 1e-6)))
        assert within <= set(candidates.tolist())
        np.testing.assert_allclose(np.sort(near[rows]), distances, rtol=1e-4, atol=1e-3)


def test_most_of_a_bank_is_told_to_be_too_far(short):
    assert len(short.directions.T) == 16
    assert all(len(short.candidates(query[None], K)) < len(short.bank) / 10 for query in QUERIES["like the bank"])


def test_rounding_takes_no_neighbour_off_the_list():
    """A bank 1e-3 wide, 4 away from the origin, in the directions seen: float32's products leave the order open."""
    generator = torch.Generator().manual_seed(0)
    tight = torch.ones(2000, 40)
    tight[:, :16] += 1e-3 * torch.randn(2000, 16, generator=generator)
    made = along_axes(tight)
    for query in tight[5:25]:
        nearest = (tight.double() - query.double()).square().sum(dim=1).topk(K, largest=False).indices
        assert set(nearest.tolist()) <= set(made.candidates(query[None], K).tolist())


@pytest.mark.parametrize("scale", [1e-19, 1e-21, 1e-23, 1e-30])
def test_products_that_underflow_take_no_neighbour_off_the_list(monkeypatch, scale: float):
    bank, queries = vectors(2000, 0) * scale, vectors(10, 5) * scale
    made = along_axes(bank)
    for query in queries:
        nearest = (bank.double() - query.double()).square().sum(dim=1).topk(K, largest=False).indices
        assert set(nearest.tolist()) <= set(made.candidates(query[None], K).tolist())
    monkeypatch.setattr(_shortlist, "_SMALLEST", 0)
    method = KNN(k=K, normalise=False).fit(FeatureSet({Field.FEATURES: bank}), None).prepare()
    assert method.score(FeatureSet({Field.FEATURES: queries[:1]})).isfinite().all()


def test_there_is_none_where_it_would_not_help(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    monkeypatch.setattr(_shortlist, "_SMALLEST", 0)
    assert Shortlist.of(Bank(torch.randn(2000, 64, generator=generator)).read_ahead(), K) is None
    assert Shortlist.of(Bank(torch.randn(2000, 8, generator=generator)).read_ahead(), K) is None
    monkeypatch.undo()
    assert Shortlist.of(Bank(vectors(2000, 0)).read_ahead(), K) is None  # all of it is searched at once


@pytest.mark.parametrize("normalise", [True, False])
def test_knn_scores_single_images_as_it_does_many(monkeypatch, normalise):
    monkeypatch.setattr(_shortlist, "_SMALLEST", 0)
    train, test = (FeatureSet({Field.FEATURES: vectors(count, seed)}) for count, seed in ((3000, 0), (20, 5)))
    method = KNN(k=K, normalise=normalise).fit(train, None)
    plain = method.score(test)
    assert method.prepare().short_ is not None
    single = torch.cat([method.score(test[row : row + 1]) for row in range(len(test))])
    torch.testing.assert_close(single, plain, rtol=1e-5, atol=1e-7)
    assert method.fit(train, None).short_ is None
