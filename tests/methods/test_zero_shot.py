import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, softmax

from openbench.methods.prompts import ZeroShot

from .problems import KINDS, assert_equal, f, problem, scores


@pytest.mark.parametrize("temperature", [0.01, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_scipys_cosines(kind, temperature):
    data = problem(kind)
    cosine = 1 - cdist(f(data.test), data.weight, metric="cosine")
    energy = -temperature * logsumexp(cosine / temperature, axis=1)
    assert_equal(scores(ZeroShot("energy", temperature), data), energy)
    assert_equal(scores(ZeroShot("mls", temperature), data), -cosine.max(axis=1))
    p = np.sort(softmax(cosine / temperature, axis=1), axis=1)
    odds = np.log(p[:, :-1].sum(axis=1) / p[:, -1]) - np.log(p.shape[1] - 1)
    # At 0.01 the float32 rounding of a cosine counts a hundred times.
    np.testing.assert_allclose(scores(ZeroShot("msp", temperature), data), odds, rtol=1e-4, atol=1e-4)
