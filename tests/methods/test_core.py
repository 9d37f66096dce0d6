import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import zmap

from openbench.core.features import Head
from openbench.methods.core import CORE

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


def test_what_the_predicted_class_reads_moves_the_energy_alone():
    """Two steps along the predicted weight leave the residual; logits are given, so that the energy stays, too."""
    data = problem("signed")
    method = CORE().fit(data.train, data.head)
    along = data.head.weight[data.test.logits.argmax(dim=1)]
    moved = given(features=data.test.features + 2 * along, logits=data.test.logits)
    torch.testing.assert_close(method.score(moved), method.score(data.test), rtol=1e-4, atol=1e-4)


def test_with_one_feature_there_is_no_residual_and_energy_remains():
    x = torch.tensor([[1.0], [2.0], [4.0], [5.0]])
    head = Head(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    train = given(features=x, logits=head(x), labels=torch.tensor([0, 1, 0, 1]))
    found = CORE().fit(train, head).score(train.without_labels())
    energy = -logsumexp(z(train), axis=1)
    assert_equal(found.numpy(), (energy - energy.mean()) / energy.std())


def test_both_parts_weigh_alike_whatever_the_scale_of_the_logits():
    """Energies of saturated logits are a hundred times as large and spread; standardised, they are the same."""
    data = problem("hot")
    method = CORE().fit(data.train, data.head)
    found = method._parts(data.train)
    standard = (found - method.center_) * method.scale_
    torch.testing.assert_close(standard.mean(dim=0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(standard.std(dim=0, correction=0), torch.ones(2, dtype=torch.float64))
