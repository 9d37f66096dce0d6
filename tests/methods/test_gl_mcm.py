import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import softmax

from openbench.methods import prompts
from openbench.methods.prompts import GLMCM, MCM

from .problems import assert_equal, f, problem, scores


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 1.0), (0.01, 0.5), (10.0, 2.0)])
def test_equals_softmax_of_scipys_cosines_patch_by_patch(temperature, weight, monkeypatch):
    monkeypatch.setattr(prompts, "_IMAGES", 7)
    data = problem("signed")

    def largest(vectors):
        cosine = 1 - cdist(vectors, data.weight, metric="cosine")
        return softmax(cosine / temperature, axis=1).max(axis=1)

    patches = data.test.patches.double().numpy()
    local = np.array([largest(of_image).max() for of_image in patches])
    expected = 1 / 6 - largest(f(data.test)) + weight * (1 / 6 - local)
    found = scores(GLMCM(temperature, weight), data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 / temperature * 1e-2 + 1e-8)


def test_without_patches_it_is_mcm():
    data = problem()
    assert_equal(scores(GLMCM(weight=0.0), data), scores(MCM(), data))
