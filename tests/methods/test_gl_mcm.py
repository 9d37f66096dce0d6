import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.methods import gl_mcm
from openbench.methods.gl_mcm import GLMCM
from openbench.methods.mcm import MCM

from .problems import assert_equal, f, problem, scores


@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 1.0), (0.01, 0.5), (10.0, 2.0)])
def test_equals_softmax_of_scipys_cosines_patch_by_patch(temperature, weight, monkeypatch):
    monkeypatch.setattr(gl_mcm, "_IMAGES", 7)
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


def test_one_patch_that_shows_a_class_makes_an_image_known():
    data = problem()
    prototypes = torch.nn.functional.normalize(data.head.weight, dim=1)
    patches = -prototypes.mean(dim=0).expand(2, 4, -1).clone()
    patches[1, 2] = prototypes[3]
    features = data.test.features[:1].expand(2, -1)
    found = GLMCM().fit(None, data.head).score(FeatureSet({Field.FEATURES: features, Field.PATCHES: patches.half()}))
    assert found[1] < found[0]
