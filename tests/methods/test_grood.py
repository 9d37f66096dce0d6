import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.gradients import GROOD

from .problems import KINDS, assert_equal, f, given, problem, scores, y, z


def prototypes(data) -> np.ndarray:
    """Class means, then their mean."""
    found = np.stack([f(data.train)[y(data.train) == c].mean(axis=0) for c in np.unique(y(data.train))])
    return np.vstack([found, found.mean(axis=0)])


def gradients(data, x: FeatureSet) -> np.ndarray:
    """Of each sample's cross-entropy with the nearest class prototype, by autograd, for the OOD prototype."""
    points = torch.tensor(prototypes(data), requires_grad=True)
    found = []
    for row in torch.tensor(f(x)):
        affinity = -torch.linalg.vector_norm(row - points, dim=1)
        loss = torch.nn.functional.cross_entropy(affinity, affinity[:-1].argmax())
        found.append(torch.autograd.grad(loss, points)[0][-1].numpy())
    return np.array(found)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_nearest_gradient_by_autograd(kind):
    data = problem(kind, n=300)
    right = z(data.train).argmax(axis=1) == y(data.train)
    index = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(gradients(data, data.train)[right])
    expected = index.kneighbors(gradients(data, data.test))[0][:, 0] ** 2
    assert_equal(scores(GROOD(), data), expected, rtol=1e-4)


def test_the_ood_prototype_itself_has_a_gradient_of_zero():
    data = problem()
    fitted = GROOD().fit(data.train, None)
    point = fitted.prototypes_[-1:].float()
    assert bool(fitted.score(given(features=point, logits=torch.zeros(1, 6))).isfinite().all())


def test_a_network_that_is_always_wrong_is_refused():
    data = problem()
    data.train.columns[Field.LOGITS].zero_()[:, 3] = 1  # a class without samples
    with pytest.raises(MethodError, match=r"GROOD\.fit: none of 600 training samples"):
        GROOD().fit(data.train, None)
