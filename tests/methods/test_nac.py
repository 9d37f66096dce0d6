from dataclasses import replace

import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.methods.histograms import NAC

from .problems import KINDS, f, problem, scores, z


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
def test_equals_histograms_of_gradients_by_autograd(kind, bins, full, steepness):
    data = tilted(kind)
    found = scores(NAC(bins, full, steepness, samples=600), data)
    agree(found, by_loops(data, bins, full, steepness, np.arange(600)), full)


def test_bounds_reach_from_zero_over_one_half_to_beyond_one():
    data = problem()
    found = NAC(bins=50).fit(data.train, data.head).bounds_
    assert len(found) == 50
    assert found[0] == 0
    assert found[24] == pytest.approx(0.5)
    assert found[-2] == pytest.approx(1.01)
    assert bool((found.diff() > 0).all())
    np.testing.assert_allclose(found, bounds(50), rtol=1e-12)


def test_states_of_zero_and_one_lie_inside():
    """Saturated sigmoids: 0 and 1 exactly."""
    data = problem("hot")
    fitted = NAC(steepness=1e30, samples=600).fit(data.train, data.head)
    found = fitted.score(data.test.without_labels())
    assert bool(((found <= 0) & (found >= -1)).all())
    assert float(found.min()) < -0.9
