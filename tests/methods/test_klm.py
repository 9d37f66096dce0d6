import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import entropy

from openbench.methods.logits import KLM

from .problems import assert_equal, given, problem, scores, z


def by_scipy(data) -> np.ndarray:
    """The least scipy.stats.entropy(p, q) over templates q, which normalises both of its arguments."""
    val = softmax(z(data.val), axis=1)
    predicted, templates = val.argmax(axis=1), np.eye(val.shape[1])
    for c in np.unique(predicted):
        templates[c] = val[predicted == c].mean(axis=0)
    return np.array([entropy(p[:, None], templates.T, axis=0).min() for p in softmax(z(data.test), axis=1)])


@pytest.mark.parametrize(
    ("kind", "n"), [("rectified", 200), ("signed", 200), ("two_classes", 200), ("dead", 200), ("many_classes", 40)]
)
def test_equals_scipy_pair_by_pair(kind, n):
    data = problem(kind, n)
    found = scores(KLM(), data)
    np.testing.assert_allclose(found, by_scipy(data), rtol=1e-4, atol=1e-6)


def test_probabilities_that_underflow_in_templates_have_their_closed_form():
    """Templates e^-8000 and 1; of p = (1/2, 1/2) the divergence from either is 1/2 log(1/2) + 1/2 (log(1/2) + 8000)."""
    fitted = KLM().fit(given(logits=[[8000.0, 0.0], [0.0, 8000.0]]), None)
    found = fitted.score(given(logits=[[5.0, 5.0], [8000.0, 0.0], [0.0, 6000.0]]))
    assert_equal(found, [4000 - np.log(2), 0.0, 0.0], rtol=1e-7)


def test_a_mean_of_underflowing_probabilities_has_its_closed_form():
    """The second class's share in the template of the first is (e^-1000 + e^-3000) / 2."""
    fitted = KLM().fit(given(logits=[[1000.0, 0.0, -1e4], [3000.0, 0.0, -1e4], [-1e4, -1e4, 0.0]]), None)
    p = softmax([0.0, -1.0, -9.0])
    first = (p[1:] * [1000 + np.log(2), 11000 + np.log(2)]).sum()  # e^-11000 + e^-13000 of the third
    assert_equal(fitted.score(given(logits=[[0.0, -1.0, -9.0]])), [(p * np.log(p)).sum() + first], rtol=1e-7)


def test_a_class_that_no_sample_is_predicted_as_stays_infinitely_far():
    fitted = KLM().fit(given(logits=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), None)
    near_third = fitted.score(given(logits=[[0.0, 0.0, 40.0]]))  # p of the others e^-40: not 0
    assert_equal(near_third, [np.log(np.e + 2)], rtol=1e-6)
    assert_equal(fitted.score(given(logits=[[0.0, 0.0, 8000.0]])), [0.0], rtol=0)  # p is one-hot: no divergence
