"""Densities of activations, against NumPy's histograms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from openbench.core.features import FeatureSet, Head
from openbench.methods.histograms import NAC, WeiPer

from .problems import KINDS, equals, f, problem, scores, z


def tilted(kind: str):
    """A problem whose weights do not sum to zero over classes, so that the uniform distribution's part matters."""
    data = problem(kind)
    return replace(data, head=Head(data.head.weight + torch.linspace(-1, 2, 24), data.head.bias))


def states(data, x: FeatureSet, steepness: float) -> np.ndarray:
    """Feature times the gradient, by autograd, of the KL divergence of the prediction from uniform; then sigmoid."""
    features = torch.tensor(f(x), requires_grad=True)
    # The network's own logits, with what they depend on: W f + (z − W f), so that rounding of z stays.
    own = torch.tensor(z(x)) - (features @ torch.tensor(data.weight).T).detach()
    logits = features @ torch.tensor(data.weight).T + own
    uniform = torch.full_like(logits, 1 / logits.shape[1])
    divergence = torch.nn.functional.kl_div(torch.log_softmax(logits, dim=1), uniform, reduction="sum")
    (gradient,) = torch.autograd.grad(divergence, features)
    return torch.sigmoid(steepness * features * gradient).detach().numpy()


def bounds(bins: int) -> list[float]:
    """Denser towards one half, written out number by number."""
    half, step = bins // 2, (1000**0.5 - 1) / (bins // 2 - 1)
    lower = [np.log(1 + i * step) / np.log(1000) for i in range(half)]
    upper = [1 - value for value in lower[::-1]]
    found = lower[:-1] + upper + [1.2]
    found[-2] = 1.01
    return found


def by_loops(data, bins: int, full: int, steepness: float, chosen: np.ndarray) -> np.ndarray:
    edges = bounds(bins)
    train, test = states(data, data.train, steepness)[chosen], states(data, data.test, steepness)
    covered = np.zeros(len(test))
    for j in range(24):
        counts, _ = np.histogram(train[:, j], bins=edges)
        covered += np.minimum(counts / full, 1)[np.digitize(test[:, j], edges) - 1]
    return -covered / 24


def agree(found: np.ndarray, expected: np.ndarray, full: int) -> None:
    """Equal, but for one state in a thousand on a bound by rounding."""
    assert np.mean(np.abs(found - expected) > 1e-6) < 0.02
    assert np.abs(found - expected).max() <= 2 / 24


@pytest.mark.parametrize(("bins", "full", "steepness"), [(50, 50, 100.0), (4, 1, 1.0), (500, 10, 3000.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_nac_equals_histograms_of_gradients_by_autograd(kind, bins, full, steepness):
    data = tilted(kind)
    found = scores(NAC(bins, full, steepness, samples=600), data)
    agree(found, by_loops(data, bins, full, steepness, np.arange(600)), full)


def test_nac_states_of_zero_and_one_lie_inside():
    """Saturated sigmoids: 0 and 1 exactly."""
    data = problem("hot")
    fitted = NAC(steepness=1e30, samples=600).fit(data.train, data.head)
    found = fitted.score(data.test.without_labels())
    assert bool(((found <= 0) & (found >= -1)).all())
    assert float(found.min()) < -0.9


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


@equals(WeiPer(lambda_1=1.5, lambda_2=0.7, **SMALL), WeiPer("msp", repeats=5), n=60)
def test_weiper_equals_histograms_sample_by_sample(data, method):
    train, test = perturbed(method, f(data.train)), perturbed(method, f(data.test))
    classes = len(data.bias)
    confidence = softmax(test.reshape(len(test), 5, classes), axis=2).max(axis=2).mean(axis=1)
    if method.form == "msp":
        return -confidence
    plain, shifted = divergences(f(data.train), f(data.test), 20, 4, 0.01), divergences(train, test, 20, 7, 0.025)
    return plain + 1.5 * shifted - 0.7 * confidence


def test_weiper_perturbations_have_the_stated_length_and_random_directions():
    data = problem()
    fitted = WeiPer(repeats=40, distance=2.4, max_train=10).fit(data.train, data.head)
    moved = fitted.weights_.reshape(40, 6, 24) - data.head.weight.double()
    length = torch.linalg.vector_norm(data.head.weight.double(), dim=1)
    torch.testing.assert_close(torch.linalg.vector_norm(moved, dim=2), (2.4 * length).expand(40, 6))
    directions = torch.nn.functional.normalize(moved.reshape(240, 24), dim=1)
    assert (directions @ directions.T - torch.eye(240)).abs().max() < 0.95
    assert directions.mean(dim=0).abs().max() < 0.06
    torch.testing.assert_close(fitted.biases_.reshape(40, 6), data.head.bias.double().expand(40, 6))


def test_weiper_densities_see_no_more_samples_than_allowed():
    data = problem()
    whole, part = (WeiPer(max_train=m, **SMALL).fit(data.train, data.head) for m in (600, 100))
    assert part.bounds_[0, 0] >= whole.bounds_[0, 0]
    assert part.bounds_[0, -1] < whole.bounds_[0, -1]
    every = WeiPer(max_train=None, **SMALL).fit(data.train, data.head)
    assert torch.equal(every.density_, whole.density_)
