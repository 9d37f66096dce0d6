"""ECOD and COPOD against PyOD, one sample at a time, and against tails counted by hand."""

import numpy as np
import pytest
from scipy.stats import skew

from openbench.methods import tabular
from openbench.methods.tabular import COPOD, ECOD

from .problems import assert_equal, f, given, problem, scores

METHODS = [ECOD, COPOD]


@pytest.mark.parametrize("kind", ["rectified", "signed"])
@pytest.mark.parametrize("cls", METHODS)
def test_equals_pyod_for_a_batch_of_one(cls, kind):
    models = pytest.importorskip("pyod.models." + cls.__name__.lower(), reason="needs the package pyod")
    data = problem(kind)
    peer = getattr(models, cls.__name__)().fit(f(data.train))
    expected = [float(peer.decision_function(row[None])[0]) for row in f(data.test)[:60]]
    assert_equal(scores(cls(), data)[:60], expected)


def counted(train: np.ndarray, test: np.ndarray, ecod: bool) -> np.ndarray:
    """Sum over features for each row of `test`, tails counted one by one."""
    total = np.zeros(len(test))
    for column, values in zip(train.T, test.T, strict=True):
        skewness = 0.0 if np.ptp(column) == 0 else skew(column)
        for i, value in enumerate(values):
            left = -np.log((np.count_nonzero(column <= value) + 1) / (len(column) + 1))
            right = -np.log((np.count_nonzero(column >= value) + 1) / (len(column) + 1))
            skewed = left + right if skewness == 0 else (left if skewness < 0 else right)
            total[i] += max(left, right, skewed) if ecod else max((left + right) / 2, skewed)
    return total


@pytest.mark.parametrize("kind", ["rectified", "signed", "dead"])
@pytest.mark.parametrize("cls", METHODS)
def test_equals_tails_counted_one_by_one(cls, kind):
    data = problem(kind, n=80)
    assert_equal(scores(cls(), data), counted(f(data.train), f(data.test), cls is ECOD))


@pytest.mark.parametrize("kind", ["rectified", "dead"])
@pytest.mark.parametrize("cls", METHODS)
def test_training_values_too_many_to_be_copied_count_the_same(cls, kind, monkeypatch):
    """Rectified and constant features repeat values in several blocks."""
    data = problem(kind, n=80)
    monkeypatch.setattr(tabular, "_SORTED_IN_MEMORY", 80 * 24 - 1)
    monkeypatch.setattr(tabular, "_SORTED", 7 * 24)  # blocks of 7 of the 80
    fitted = cls().fit(data.train, None)
    assert_equal(fitted.score(data.test.without_labels()), counted(f(data.train), f(data.test), cls is ECOD))
    assert fitted.tails_.values.data_ptr() == data.train.features.data_ptr()


@pytest.mark.parametrize(("cls", "expected"), [(ECOD, np.log(5) + np.log(5 / 5)), (COPOD, np.log(5))])
def test_a_symmetric_feature_counts_both_tails(cls, expected):
    """Training −2, −1, 1, 2; the sample 3 has P(X ≥ 3) = 1/5 and P(X ≤ 3) = 1."""
    train = given(features=[[-2.0], [-1.0], [1.0], [2.0]])
    x = given(features=[[3.0]])
    assert float(cls().fit(train, None).score(x)) == pytest.approx(expected)


@pytest.mark.parametrize("cls", METHODS)
def test_training_values_are_put_in_order_some_features_at_a_time(cls, monkeypatch):
    data = problem("rectified", n=80)
    monkeypatch.setattr(tabular, "_SORTED", 5 * 80 + 3)  # strips of 5 of the 24
    assert_equal(scores(cls(), data), counted(f(data.train), f(data.test), cls is ECOD))
