import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import spearmanr

from openbench.methods.logits import GEN

from .problems import assert_equal, problem, scores, z


@pytest.mark.parametrize(("gamma", "top"), [(0.1, 100), (0.1, 2), (1.0, 3), (10.0, 1000)])
@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes", "many_classes"])
def test_equals_scipy(kind, gamma, top):
    data = problem(kind)
    p = np.sort(softmax(z(data.test), axis=1), axis=1)[:, ::-1][:, :top]
    # 1 − p keeps about three digits where p is within 1e-4 of 1, which is what float32 publishes.
    sane = p[:, 0] < 0.999
    expected = (p**gamma * (1 - p) ** gamma).sum(axis=1)
    assert sane.mean() > 0.3
    assert_equal(scores(GEN(gamma, top), data)[sane], expected[sane], rtol=2e-4)


def by_loops(logits: np.ndarray, gamma: float, top: int) -> np.ndarray:
    """Sum over the largest classes; 1 − p_c as the log-sum-exp of the other log-probabilities."""
    result = np.zeros(len(logits))
    for i, row in enumerate(log_softmax(logits, axis=1)):
        for c in np.argsort(-row)[:top]:
            result[i] += np.exp(gamma * (row[c] + logsumexp(np.delete(row, c))))
    return result


@pytest.mark.parametrize("kind", ["rectified", "hot", "two_classes", "dead"])
def test_exact_equals_sums_over_the_other_classes(kind):
    data = problem(kind, n=150)
    assert_equal(scores(GEN(exact=True), data), by_loops(z(data.test), 0.1, 100))
    assert_equal(scores(GEN(0.5, 2, exact=True), data), by_loops(z(data.test), 0.5, 2))


def test_exact_ranks_saturated_logits_where_float32_does_not():
    data = problem("hot")
    truth = by_loops(z(data.test), 0.1, 100)
    assert spearmanr(scores(GEN(exact=True), data), truth).statistic > 0.99999
    assert spearmanr(scores(GEN(), data), truth).statistic < 0.98
