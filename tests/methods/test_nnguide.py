import numpy as np
import pytest
from scipy.special import logsumexp

from openbench.methods.neighbours import NNGuide

from .problems import assert_equal, f, problem, scores, unit, y, z


def by_loops(data, bank: np.ndarray, k: int) -> np.ndarray:
    features, energy = f(data.train)[bank], logsumexp(z(data.train)[bank], axis=1)
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        cosines = features @ row / (np.linalg.norm(features, axis=1) * np.linalg.norm(row))
        result.append(-logsumexp(logits) * np.sort(cosines * energy)[-k:].mean())
    return np.array(result)


def bank_of(method: NNGuide, data) -> np.ndarray:
    """The training samples whose guidance was kept."""
    guides = method.fit(data.train, None).guides_.double().numpy()
    own = unit(f(data.train)) * logsumexp(z(data.train), axis=1)[:, None]
    distances = np.abs(guides[:, None] - own).max(axis=2)
    assert distances.min(axis=1).max() < 1e-4
    return distances.argmin(axis=1)


@pytest.mark.parametrize("kind", ["rectified", "signed", "hot", "two_classes", "dead"])
@pytest.mark.parametrize(("alpha", "size"), [(0.01, 200), (0.34, 400), (1.0, 600)])
def test_the_first_samples_up_to_a_whole_batch_equal_loops(kind, alpha, size):
    data = problem(kind)
    assert_equal(scores(NNGuide(50, alpha, "first"), data), by_loops(data, np.arange(size), 50))


@pytest.mark.parametrize("k", [1, 10, 600])
def test_all_samples_as_bank_equal_loops(k):
    data = problem()
    assert_equal(scores(NNGuide(k, 1.0), data), by_loops(data, np.arange(600), k))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_balanced_bank_holds_equally_many_of_each_class(seed):
    data = problem(n=600)
    chosen = bank_of(NNGuide(k=100, alpha=0.01, seed=seed), data)
    counts = np.bincount(y(data.train)[chosen], minlength=6)
    assert len(chosen) == len(np.unique(chosen)) == 100
    assert counts[3] == 0  # it has no samples
    assert set(counts[[0, 1, 2, 4, 5]]) == {20}


def test_guidance_of_the_balanced_bank_equals_loops():
    data = problem()
    method = NNGuide(20, 0.1)
    assert_equal(scores(method, data), by_loops(data, bank_of(method, data), 20))
