import numpy as np
import pytest
import torch
from problems import f, problem
from sklearn.neighbors import NearestNeighbors

from openbench.methods import _bank
from openbench.methods._bank import Bank


@pytest.mark.parametrize("k", [1, 7, 600])
@pytest.mark.parametrize("unit", [True, False])
def test_distances_equal_sklearns(unit, k, monkeypatch):
    data = problem("signed")
    bank, queries = f(data.train), f(data.test)
    if unit:
        bank = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    expected = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(bank).kneighbors(queries)[0][:, -1] ** 2
    found = Bank(data.train.features, unit).kth_squared_distance(data.test.features, k)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    monkeypatch.setattr(_bank, "_BANK_CHUNK", 37)
    monkeypatch.setattr(_bank, "_QUERY_CHUNK", 11)
    in_blocks = Bank(data.train.features, unit).kth_squared_distance(data.test.features, k)
    torch.testing.assert_close(in_blocks, found, rtol=1e-4, atol=1e-6)


def test_tiny_distances_keep_their_digits():
    """Far from the origin the expansion of the square has none left in single precision."""
    bank = 1000 + torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    query = 1000 + torch.tensor([[0.001, 0.0]])
    exact = float((query.double() - bank.double())[0].square().sum())
    assert Bank(bank).kth_squared_distance(query, 1).item() == pytest.approx(exact, rel=1e-4)
