import numpy as np
import pytest
import torch
from scipy.special import logit, logsumexp, softmax
from torch.nn import functional

from openbench.core.request import Perturb
from openbench.errors import MethodError
from openbench.methods.gradients import IODIN, ODIN

from .problems import assert_equal, given, logits_after_step, problem, scores, z


@pytest.fixture(scope="module")
def images():
    return torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def by_hand(network, images: torch.Tensor, temperature: float, epsilon: float) -> np.ndarray:
    """The authors' recipe in float64: backward of the cross-entropy, one signed step, softmax of the second pass."""
    moved = logits_after_step(
        network, images, lambda z: functional.cross_entropy(z / temperature, z.argmax(dim=1)), epsilon
    )
    return softmax(moved / temperature, axis=1).max(axis=1)


@pytest.mark.parametrize("epsilon", [0.0, 0.0014, 0.02])
@pytest.mark.parametrize("temperature", [1.0, 10.0, 1000.0])
def test_equals_the_recipe_through_a_real_network(network, images, temperature, epsilon):
    method = ODIN(temperature, epsilon)
    p = by_hand(network, images, temperature, epsilon)
    outputs = network.outputs(images, method.request)
    moved = given(logits=outputs.logits)
    published = ODIN(temperature, epsilon, scale="probability")
    # One float32 pass decides about 1e-4 of the spread of logits, and the sign of gradients near zero.
    for found, expected in ((method.score(moved), -logit(p) - np.log(3)), (published.score(moved), 1 / 4 - p)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_scores_differ_where_probabilities_round_to_one():
    """Two classes apart by a lead of 20 to 700: log((1 − p)/p) is minus the lead."""
    lead = torch.linspace(20, 700, 500)
    x = given(logits=torch.stack([torch.zeros(500), lead], dim=1))
    torch.testing.assert_close(ODIN(1.0).score(x), -lead)
    assert len(ODIN(1.0, scale="probability").score(x).unique()) < 250


@pytest.mark.parametrize("temperature", [0.05, 10.0])  # at .05 most p round to 1 in float64 too
@pytest.mark.parametrize("kind", ["rectified", "hot", "two_classes", "many_classes"])
@pytest.mark.parametrize("of", [ODIN, IODIN])
def test_class_scores_are_the_odds_against_each_class(of, kind, temperature):
    data = problem(kind, n=12)
    found = of(temperature).class_scores(data.test).double().numpy()
    expected = np.empty_like(found)
    for c in range(found.shape[1]):
        rest = np.delete(z(data.test), c, axis=1)
        expected[:, c] = (
            logsumexp(rest / temperature, axis=1) - z(data.test)[:, c] / temperature - np.log(found.shape[1] - 1)
        )
    assert_equal(found, expected)
    assert_equal(found.min(axis=1), scores(of(temperature), data))


@pytest.mark.parametrize("of", [ODIN, IODIN])
def test_class_scores_of_the_published_scale_are_what_each_probability_lacks(of):
    data = problem(n=100)
    found = of(10.0, scale="probability").class_scores(data.test)
    assert_equal(found, 1 / 6 - softmax(z(data.test) / 10, axis=1))


def test_one_class_has_no_odds():
    with pytest.raises(MethodError, match="1 class"):
        ODIN().score(given(logits=torch.randn(3, 1)))


def test_scores_differ_where_float32_probabilities_tie_at_high_temperature():
    logits = torch.randn(20_000, 10, generator=torch.Generator().manual_seed(0))
    plain = torch.softmax(logits / 1000, dim=1).max(dim=1).values
    found = ODIN().score(given(logits=logits))
    assert len(plain.unique()) < 0.65 * len(logits)
    assert len(found.unique()) > 0.99 * len(logits)
    exact = -softmax(logits.double().numpy() / 1000, axis=1).max(axis=1)
    assert np.diff(exact[np.argsort(found.numpy(), kind="stable")]).min() > -1e-9
    # At T → ∞ the score is the mean gap to the top logit over T: the digits are those of the logits.
    gaps = (logits.double().sum(dim=1) - 10 * logits.double().max(dim=1).values) / 9
    torch.testing.assert_close(1e6 * ODIN(1e6).score(given(logits=logits)), gaps.float(), rtol=1e-4, atol=0)


def test_request_names_the_step_of_this_instance():
    assert ODIN(10, 0.0028).request.perturb == Perturb(10.0, 0.0028, "sign")
    assert ODIN(10.0).request == ODIN(10).request
    assert ODIN().request == ODIN.needs
    assert ODIN.needs.fit_on is None
