"""SOD against sets and variances counted sample by sample."""

import numpy as np
import pytest

from openbench.methods.tabular import SOD

from .problems import assert_equal, f, given, problem, scores


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


@pytest.mark.parametrize("kind", ["rectified", "signed", "dead"])
@pytest.mark.parametrize(("k", "size", "alpha"), [(20, 10, 0.8), (5, 5, 0.3)])
def test_equals_reference_sets_counted_one_by_one(kind, k, size, alpha):
    data = problem(kind, n=80)
    train = f(data.train)
    rows = f(data.test)[:15]
    expected = [deviation(train, row, reference_set(train, row, k, size), alpha) for row in rows]
    assert_equal(scores(SOD(k=k, l=size, alpha=alpha), data)[:15], expected)


def test_without_a_tight_feature_the_score_is_zero():
    """One feature: its variance is the mean variance, hence never below α times it."""
    train = np.random.default_rng(0).normal(size=(50, 1))
    assert SOD().fit(given(features=train), None).score(given(features=[[9.0]])).item() == 0
