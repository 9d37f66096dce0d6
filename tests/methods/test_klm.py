import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

from openbench.methods.klm import KLM

from .problems import assert_equal, problem, scores, z


def by_scipy(data) -> np.ndarray:
    """scipy.stats.entropy(p, q), pair by pair, which normalises both of its arguments."""
    val = softmax(z(data.val), axis=1)
    predicted, classes = val.argmax(axis=1), val.shape[1]
    templates = [
        val[predicted == c].mean(axis=0) if (predicted == c).any() else np.eye(classes)[c] for c in range(classes)
    ]
    return np.array([min(entropy(p, q) for q in templates) for p in softmax(z(data.test), axis=1)])


@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes", "dead"])
def test_equals_scipy_pair_by_pair(kind):
    data = problem(kind, n=200)
    found = scores(KLM(), data)
    np.testing.assert_allclose(found, by_scipy(data), rtol=1e-4, atol=1e-6)


def test_a_thousand_classes_of_which_most_are_never_predicted():
    data = problem("many_classes", n=40)
    assert_equal(scores(KLM(), data), by_scipy(data), rtol=1e-4)


def test_saturated_probabilities_have_finite_scores():
    """Where float32 probabilities underflow, some template contains each sample's support."""
    data = problem("hot")
    found = scores(KLM(), data)
    assert np.isfinite(found).all()
    assert found.min() > -1e-6
