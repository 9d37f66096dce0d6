"""The shared neighbour search against scikit-learn's brute force, in blocks, among copies and far from the origin."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from openbench.methods import _bank
from openbench.methods._bank import Bank

from .problems import f, problem


def brute(bank, k: int) -> NearestNeighbors:
    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(np.asarray(bank, dtype=np.float64))


# All of the samples are as many neighbours as there can be; few samples show that as well as many.
SIZES = [(1, 600), (7, 600), (240, 240)]


def in_small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(_bank, "_BANK_CHUNK", 37)
    monkeypatch.setattr(_bank, "_QUERY_CHUNK", 11)
    monkeypatch.setattr(_bank, "_ENTRIES", 1000)


@pytest.mark.parametrize(("k", "n"), SIZES)
@pytest.mark.parametrize("unit", [True, False])
def test_distances_equal_sklearns(unit, k, n, monkeypatch):
    data = problem("signed", n)
    bank, queries = f(data.train), f(data.test)
    if unit:
        bank = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    expected = brute(bank, k).kneighbors(queries)[0][:, -1] ** 2
    found = Bank(data.train.features, unit).kth_squared_distance(data.test.features, k)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    in_small_blocks(monkeypatch)
    in_blocks = Bank(data.train.features, unit).kth_squared_distance(data.test.features, k)
    torch.testing.assert_close(in_blocks, found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("k", "n"), SIZES)
def test_rows_come_in_sklearns_order(k, n, blocks, monkeypatch):
    """Single precision in memory, double precision in the search: there is no other order of these."""
    if blocks:
        in_small_blocks(monkeypatch)
    data = problem("rectified", n)
    expected = brute(f(data.train), k).kneighbors(f(data.test), return_distance=False)
    bank, queries = Bank(data.train.features), data.test.features.double()
    np.testing.assert_array_equal(bank.nearest(queries, k), expected)
    np.testing.assert_array_equal(bank.nearest_exactly(queries, k), expected)


def test_a_zero_vector_in_a_bank_of_directions_is_at_distance_one():
    """Its cosine of 0 would put it beyond everything within a right angle, at 2."""
    bank = torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.0, 3.0]])
    found = [float(Bank(bank, unit=True).kth_squared_distance(torch.tensor([[1.0, 0.0]]), k)) for k in (1, 2, 3)]
    assert found == pytest.approx([0.8, 1.0, 2.0])


def test_exact_order_is_that_of_distances_where_products_round():
    """1e8 from the origin, products of float64 are good to 1: they leave the order of distances below 1 open."""
    generator = torch.Generator().manual_seed(0)
    bank = 1e8 + torch.randn(50, 3, generator=generator, dtype=torch.float64)
    queries = 1e8 + torch.randn(20, 3, generator=generator, dtype=torch.float64)
    apart = (queries[:, None] - bank).square().sum(dim=2)
    rows = Bank(bank).nearest_exactly(queries, 50)
    assert torch.equal(rows, apart.argsort(dim=1))
    assert not torch.equal(Bank(bank).nearest(queries, 50), rows)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("k", "n"), [(1, 600), (7, 600), (239, 240)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # blocks of either have their own size
def test_neighbours_among_the_others_equal_sklearns(dtype, k, n, blocks, monkeypatch):
    if blocks:
        in_small_blocks(monkeypatch)
    data = problem("signed", n)
    found = Bank(data.train.features).nearest_exactly(data.train.features.to(dtype), k, own=True)
    distances, expected = brute(f(data.train), k).kneighbors()
    if dtype == torch.float64:  # in single precision neighbours as far as another change places
        np.testing.assert_array_equal(found, expected)
    assert bool((found != torch.arange(len(found))[:, None]).all())
    apart = np.linalg.norm(f(data.train)[found] - f(data.train)[:, None], axis=2)
    np.testing.assert_allclose(apart, distances, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_no_sample_is_its_own_neighbour_among_its_copies(k):
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
def test_the_largest_of_few_groups_are_the_largest_of_all(columns, digits):
    rows = np.round(np.random.default_rng(0).normal(size=(6, columns)), digits).astype(np.float32)
    k = columns // 64
    values, places = _bank._largest(torch.from_numpy(rows), k)
    np.testing.assert_array_equal(values, -np.sort(-rows, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(rows, places.numpy(), axis=1), values)
    assert all(len(set(row)) == k for row in places.tolist())
