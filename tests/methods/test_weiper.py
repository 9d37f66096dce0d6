import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from openbench.methods import histograms
from openbench.methods.histograms import WeiPer

from .problems import KINDS, assert_equal, f, problem, scores

SMALL = {"repeats": 5, "bins": 20, "smoothing": 4, "smoothing_perturbed": 7}


def histogram(row: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.histogram(row[row < edges[-1]], bins=edges)[0] / len(row)


def smoothed(row: np.ndarray, width: int) -> np.ndarray:
    """Moving average with the end values repeated; an even window reaches one further to the right."""
    left, right = (width - 1) // 2, width // 2
    padded = np.concatenate([np.repeat(row[0], left), row, np.repeat(row[-1], right)])
    return np.array([padded[i : i + width].mean() for i in range(len(row))])


def divergences(train: np.ndarray, test: np.ndarray, bins: int, width: int, floor: float) -> np.ndarray:
    edges = np.linspace(train.min(), train.max() + 1e-8, bins + 1)
    average = np.mean([histogram(row, edges) for row in train], axis=0) + floor
    found = []
    for row in test:
        own = smoothed(histogram(row, edges), width) + floor
        found.append(entropy(own, average) + entropy(average, own))  # scipy brings both to sum one
    return np.array(found)


def perturbed(method: WeiPer, x: np.ndarray) -> np.ndarray:
    return x @ method.weights_.numpy().T + method.biases_.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_equals_histograms_sample_by_sample(kind):
    data = problem(kind, n=150)
    method = WeiPer(lambda_1=1.5, lambda_2=0.7, **SMALL)
    found = scores(method, data)
    train, test = perturbed(method, f(data.train)), perturbed(method, f(data.test))
    classes = len(data.bias)
    confidence = softmax(test.reshape(len(test), 5, classes), axis=2).max(axis=2).mean(axis=1)
    expected = divergences(f(data.train), f(data.test), 20, 4, 0.01)
    expected += 1.5 * divergences(train, test, 20, 7, 0.025) - 0.7 * confidence
    assert_equal(found, expected, rtol=1e-5)
    assert_equal(scores(WeiPer("msp", repeats=5), data), -confidence)


def test_perturbations_have_the_stated_length_and_random_directions():
    data = problem()
    fitted = WeiPer(repeats=40, distance=2.4, max_train=10).fit(data.train, data.head)
    moved = fitted.weights_.reshape(40, 6, 24) - data.head.weight.double()
    length = torch.linalg.vector_norm(data.head.weight.double(), dim=1)
    torch.testing.assert_close(torch.linalg.vector_norm(moved, dim=2), (2.4 * length).expand(40, 6))
    directions = torch.nn.functional.normalize(moved.reshape(240, 24), dim=1)
    assert (directions @ directions.T - torch.eye(240)).abs().max() < 0.95
    assert directions.mean(dim=0).abs().max() < 0.06
    torch.testing.assert_close(fitted.biases_.reshape(40, 6), data.head.bias.double().expand(40, 6))


def test_blocks_leave_no_trace(monkeypatch):
    data = problem()
    whole = scores(WeiPer(**SMALL), data)
    monkeypatch.setattr(histograms, "_LOGITS", 31 * 5 * 6)
    np.testing.assert_array_equal(scores(WeiPer(**SMALL), data), whole)


def test_densities_see_no_more_samples_than_allowed():
    data = problem()
    whole, part = (WeiPer(max_train=m, **SMALL).fit(data.train, data.head) for m in (600, 100))
    assert part.bounds_[0, 0] >= whole.bounds_[0, 0]
    assert part.bounds_[0, -1] < whole.bounds_[0, -1]
    every = WeiPer(max_train=None, **SMALL).fit(data.train, data.head)
    assert torch.equal(every.density_, whole.density_)
