import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.preprocessing import normalize

from openbench.core.features import Head
from openbench.methods.subspaces import PNML

from .problems import KINDS, assert_equal, f, given, problem, scores


def as_printed(data) -> np.ndarray:
    """The formula, term by term, with the pseudo-inverse of the features themselves."""
    train, test = normalize(f(data.train)), normalize(f(data.test))
    p = softmax(test @ data.weight.T + data.bias, axis=1)
    inverse = np.linalg.pinv(train, rcond=1e-6)
    g = np.square(test @ inverse).sum(axis=1, keepdims=True)
    kappa = g / (1 + g)
    return np.log((p / (p + (1 - p) * p**kappa)).sum(axis=1)) / np.log(p.shape[1])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "hot"])
def test_equals_the_formula(kind):
    data = problem(kind)
    assert_equal(scores(PNML(), data), as_printed(data), rtol=2e-4)


def test_regrets_of_sure_predictions_keep_their_order():
    """Two classes with logits ±a, two orthogonal training features: g = 1. The regret falls long after p rounds to 1.

    κ = 1/2, so the other class' term is (e^{−2a})^{1/2}, and the top's misses e^{−2a}.
    """
    train = given(features=torch.eye(2))
    x = given(features=torch.tensor([[2.0, 0.0]]))
    heads = [Head(torch.tensor([[a, 0.0], [-a, 0.0]]), torch.zeros(2)) for a in (20.0, 40.0, 60.0)]
    found = [float(PNML().fit(train, head).score(x)[0]) for head in heads]
    expected = [np.log1p(np.exp(-a) - np.exp(-2 * a)) / np.log(2) for a in (20, 40, 60)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
