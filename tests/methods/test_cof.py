"""COF against sums counted link by link."""

import numpy as np
import pytest
import torch

from openbench.methods.tabular import COF

from .problems import assert_equal, f, given, problem, scores


def links(point: np.ndarray, neighbours: np.ndarray) -> float:
    """Weighted costs: each neighbour, nearest first, is linked to the nearest of those before it."""
    k, total = len(neighbours), 0.0
    path = [point, *neighbours]
    for j in range(1, k + 1):
        cheapest = min(np.linalg.norm(path[j] - earlier) for earlier in path[:j])
        total += 2 * (k + 1 - j) / (k * (k + 1)) * cheapest
    return total


def by_hand(train: np.ndarray, row: np.ndarray, k: int) -> float:
    def nearest(point, of):
        return of[np.argsort(np.linalg.norm(of - point, axis=1), kind="stable")[:k]]

    def without(point):
        return train[~(train == point).all(axis=1)]

    mine = nearest(row, train)
    return k * links(row, mine) / sum(links(p, nearest(p, without(p))) for p in mine)


@pytest.mark.parametrize("kind", ["rectified", "signed"])
@pytest.mark.parametrize("k", [1, 7, 20])
def test_equals_links_counted_one_by_one(kind, k):
    data = problem(kind, n=80)
    expected = [by_hand(f(data.train), row, k) for row in f(data.test)[:25]]
    assert_equal(scores(COF(k=k), data)[:25], expected)


def test_copies_of_a_sample_pay_nothing():
    """Eight copies of 0 and one sample at 1: beside the copies anything is infinitely far, a copy is not."""
    train = [[0.0]] * 8 + [[1.0]]
    found = COF(k=3).fit(given(features=train), None).score(given(features=[[0.0], [0.5]]))
    assert found[0] == 0
    assert found[1] == torch.finfo(torch.float32).max
