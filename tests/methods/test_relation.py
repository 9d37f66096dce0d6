import numpy as np
import pytest
from scipy.special import softmax

from openbench.methods.neighbours import Relation

from .problems import assert_blocks_leave_no_trace, f, problem, scores, z


def by_loops(data, power: float, threshold: float) -> np.ndarray:
    bank, bank_p = f(data.train), softmax(z(data.train), axis=1)
    result = []
    for row, p in zip(f(data.test), softmax(z(data.test), axis=1), strict=True):
        cosines = bank @ row / np.sqrt((bank**2).sum(axis=1) * (row @ row))
        relations = np.maximum(cosines, 0) * (bank_p @ p)
        result.append(-(relations[relations > threshold] ** power).sum())
    return np.array(result)


@pytest.mark.parametrize("power", [0, 1, 2, 8])
@pytest.mark.parametrize("kind", ["rectified", "signed", "hot", "two_classes", "dead"])
def test_equals_one_sample_at_a_time(kind, power):
    data = problem(kind)
    # One relation within float32 of the threshold may fall on either side of it.
    np.testing.assert_allclose(
        scores(Relation(power), data), by_loops(data, power, 0.03), rtol=1e-5, atol=1.01 * 0.03**power
    )


def test_blocks_of_bank_and_queries_leave_no_trace(monkeypatch):
    assert_blocks_leave_no_trace(Relation(), problem(), monkeypatch, _BANK_CHUNK=37, _QUERY_CHUNK=11)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_relations_up_to_the_threshold_count_as_none(threshold):
    data = problem()
    found = scores(Relation(1.0, threshold), data)
    np.testing.assert_allclose(found, by_loops(data, 1.0, threshold), rtol=1e-5, atol=1.01 * threshold + 1e-5)
