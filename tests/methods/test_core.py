import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import zmap

from openbench.core.features import Head
from openbench.methods.geometry import CORE

from .problems import KINDS, assert_equal, f, given, problem, scores, y, z


def residual(row, weight):
    """The row less its projection on the weight, by least squares."""
    along, *_ = np.linalg.lstsq(weight[:, None], row, rcond=None)
    return row - along[0] * weight


def parts(x, data, patterns) -> np.ndarray:
    cosines = []
    for row, c in zip(f(x), z(x).argmax(axis=1), strict=True):
        r, m = residual(row, data.weight[c]), patterns[c]
        cosines.append(r @ m / np.linalg.norm(r) / np.linalg.norm(m))
    return np.stack([logsumexp(z(x), axis=1), cosines], axis=1)


def by_samples(data) -> np.ndarray:
    """Residuals of each training sample against its own class, averaged; z-scores by scipy."""
    features, labels = f(data.train), y(data.train)
    patterns = []
    for c in range(len(data.weight)):
        own = features[labels == c] if (labels == c).any() else features
        patterns.append(np.mean([residual(row, data.weight[c]) for row in own], axis=0))
    train, test = parts(data.train, data, patterns), parts(data.test, data, patterns)
    return -zmap(test, train, axis=0).sum(axis=1)


@pytest.mark.parametrize(("kind", "n"), [(kind, 60 if kind == "many_classes" else 600) for kind in KINDS])
def test_equals_residuals_taken_sample_by_sample(kind, n):
    data = problem(kind, n)
    assert_equal(scores(CORE(), data), by_samples(data), rtol=2e-5)


def test_with_one_feature_there_is_no_residual_and_energy_remains():
    x = torch.tensor([[1.0], [2.0], [4.0], [5.0]])
    head = Head(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    train = given(features=x, logits=head(x), labels=torch.tensor([0, 1, 0, 1]))
    found = CORE().fit(train, head).score(train.without_labels())
    energy = -logsumexp(z(train), axis=1)
    assert_equal(found.numpy(), (energy - energy.mean()) / energy.std())
