"""Scores from gradients, against autograd sample by sample."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logit, logsumexp, softmax
from sklearn.neighbors import NearestNeighbors
from torch.nn import functional

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field, Perturb
from openbench.errors import MethodError
from openbench.methods.gradients import GROOD, IODIN, ODIN, PRO, GradNorm, GradUncertainty
from openbench.testing._toy import network_with

from .problems import STD, assert_equal, equals, f, given, head_gradients, logits_after_step, problem, scores, y, z


def by_hand(network, images: torch.Tensor, temperature: float, epsilon: float) -> np.ndarray:
    """The authors' recipe in float64: backward of the cross-entropy, one signed step, softmax of the second pass."""
    moved = logits_after_step(
        network, images, lambda z: functional.cross_entropy(z / temperature, z.argmax(dim=1)), epsilon
    )
    return softmax(moved / temperature, axis=1).max(axis=1)


@pytest.mark.parametrize("epsilon", [0.0, 0.0014, 0.02])
@pytest.mark.parametrize("temperature", [1.0, 10.0, 1000.0])
def test_odin_equals_the_recipe_through_a_real_network(network, images, temperature, epsilon):
    method = ODIN(temperature, epsilon)
    p = by_hand(network, images, temperature, epsilon)
    outputs = network.outputs(images, method.request)
    moved = given(logits=outputs.logits)
    published = ODIN(temperature, epsilon, scale="probability")
    # One float32 pass decides about 1e-4 of the spread of logits, and the sign of gradients near zero.
    for found, expected in ((method.score(moved), -logit(p) - np.log(3)), (published.score(moved), 1 / 4 - p)):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("temperature", [0.05, 10.0])  # at .05 most p round to 1 in float64 too
@pytest.mark.parametrize("kind", ["rectified", "hot", "two_classes", "many_classes"])
@pytest.mark.parametrize("of", [ODIN, IODIN])
def test_odin_class_scores_are_the_odds_against_each_class(of, kind, temperature):
    data = problem(kind, n=12)
    found = of(temperature).class_scores(data.test).double().numpy()
    expected = np.empty_like(found)[:, :40]
    for c in range(expected.shape[1]):
        rest = np.delete(z(data.test), c, axis=1)
        expected[:, c] = (
            logsumexp(rest / temperature, axis=1) - z(data.test)[:, c] / temperature - np.log(found.shape[1] - 1)
        )
    assert_equal(found[:, :40], expected)
    assert_equal(found.min(axis=1), scores(of(temperature), data))


def test_odin_one_class_has_no_odds():
    with pytest.raises(MethodError, match="1 class"):
        ODIN().score(given(logits=torch.randn(3, 1)))


def test_odin_scores_differ_where_float32_probabilities_tie_at_high_temperature():
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


def test_odin_request_names_the_step_of_this_instance():
    assert ODIN(10, 0.0028).request.perturb == Perturb(10.0, 0.0028, "sign")
    assert IODIN(10, 0.0028).request.perturb == Perturb(10.0, 0.0028, "peak")
    assert ODIN(10.0).request == ODIN(10).request
    assert ODIN().request == ODIN.needs
    assert ODIN.needs.fit_on is None


@pytest.mark.parametrize("epsilon", [0.0014, 0.2])
@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_iodin_equals_the_recipe_through_a_real_network(network, images, temperature, epsilon):
    """One backward pass per image in float64, then one element of that image moved."""
    methods = IODIN(temperature, epsilon), IODIN(temperature, epsilon, scale="probability")
    found, published = (m.score(given(logits=network.outputs(images, m.request).logits)) for m in methods)
    module = network.module().double().eval()
    expected = []
    for image in images.double():
        x = image[None].requires_grad_(True)
        logits = module(x)
        functional.cross_entropy(logits / temperature, logits.argmax(dim=1)).backward()
        channel, row, column = np.unravel_index(int(x.grad.abs().argmax()), x.shape[1:])
        moved = x.detach().clone()
        sign = 1.0 if float(x.grad[0, channel, row, column]) >= 0 else -1.0
        moved[0, channel, row, column] -= epsilon * sign / STD[channel]
        with torch.no_grad():
            expected.append(softmax(module(moved).numpy() / temperature, axis=1).max())
    module.float()
    odds, shortfall = -logit(expected) - np.log(3), 1 / 4 - np.array(expected)
    np.testing.assert_allclose(found, odds, rtol=1e-3, atol=1e-4 * np.abs(odds).max())
    np.testing.assert_allclose(published, shortfall, rtol=1e-3, atol=1e-4 * np.abs(shortfall).max())


def walked(network, image: torch.Tensor, method: PRO) -> float:
    """The authors' recipe for one image in float64: descend on the confidence, keep the least one met."""
    module = network.module().double().eval()
    x, met = image.double()[None], []
    for _ in range(method.steps + 1):
        x = x.detach().requires_grad_(True)
        p = torch.softmax(module(x) / method.temperature, dim=1)
        confidence = p.max() if method.confidence == "msp" else (p * p.log()).sum()
        confidence.backward()
        met.append(float(confidence.detach()))
        x = x - method.epsilon * x.grad.sign()
    module.float()
    return min(met)


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize(("confidence", "temperature"), [("msp", 1.0), ("msp", 5.0), ("entropy", 1.0)])
def test_pro_equals_the_recipe_through_a_real_network(network, images, confidence, temperature, steps):
    method = PRO(confidence, 0.01, steps, temperature)
    least = np.array([walked(network, image, method) for image in images[:6]])
    expected = -logit(least) - np.log(3) if confidence == "msp" else -least
    # The sign of a gradient near zero may differ in float32, and moves one of 192 elements the other way.
    np.testing.assert_allclose(method.score_images(images[:6], network), expected, rtol=2e-3, atol=2e-3)


def test_pro_the_walk_goes_on_where_probabilities_round_to_one():
    """Two classes with z = ±100·x: the lead falls by 2·100·3ε with every step, at p = 1 in float32 as elsewhere."""
    weight = torch.tensor([[100.0, 100.0, 100.0], [-100.0, -100.0, -100.0]])
    network = network_with(Head(weight, torch.zeros(2)))
    x = torch.full((1, 3, 1, 1), 0.5)
    found = PRO(epsilon=0.01, steps=4).score_images(x, network)
    np.testing.assert_allclose(found, [-(200 * 3) * (0.5 - 4 * 0.01)], rtol=1e-5)


def test_pro_entropy_has_its_gradient_where_one_class_has_all():
    """Three classes, the top one ahead by leads a and b: the walk lowers both; entropy in closed form."""
    weight = torch.tensor([[100.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    network = network_with(Head(weight, torch.zeros(3)))
    x = torch.tensor([1.5, 0.0, 0.0]).view(1, 3, 1, 1)
    at = 1.5 - 3 * 0.3
    log_p = log_softmax(np.array([100.0 * at, 0.0, -at]))
    found = PRO("entropy", epsilon=0.3, steps=3).score_images(x, network)
    np.testing.assert_allclose(found, [-(np.exp(log_p) * log_p).sum()], rtol=1e-3)


def test_pro_each_step_costs_one_pass(network, images):
    before = network.passes
    PRO(steps=3).score_images(images, network)
    assert network.passes - before == 4 * len(images)


@equals(GradNorm(1.0), GradNorm(3.0), GradNorm(mean=True), n=60)
def test_gradnorm_equals_a_backward_pass_per_sample(data, method):
    gradients = head_gradients(data, lambda z: -torch.log_softmax(z / method.temperature, dim=0).sum())
    divisor = data.head.num_classes if method.mean else 1
    return [-float(weight.abs().sum()) / divisor for weight, _ in gradients]


@equals(GradUncertainty(), n=60, rtol=2e-5)
def test_grad_uncertainty_equals_a_backward_pass_per_sample_of_the_cost_of_a_label_of_ones(data, method):
    # The other half of the binary cross-entropy, (1 − y) log(1 − p), is zero.
    gradients = head_gradients(data, lambda z: -torch.log_softmax(z, dim=0).sum())
    return [-float(weight.square().sum() + bias.square().sum()) for weight, bias in gradients]


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


@equals(GROOD(), n=120, rtol=1e-4)
def test_grood_equals_nearest_gradient_by_autograd(data, method):
    right = z(data.train).argmax(axis=1) == y(data.train)
    index = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(gradients(data, data.train)[right])
    return index.kneighbors(gradients(data, data.test))[0][:, 0] ** 2


def test_grood_the_ood_prototype_itself_has_a_gradient_of_zero():
    data = problem()
    fitted = GROOD().fit(data.train, None)
    point = fitted.prototypes_[-1:].float()
    assert bool(fitted.score(given(features=point, logits=torch.zeros(1, 6))).isfinite().all())


def test_grood_a_network_that_is_always_wrong_is_refused():
    data = problem()
    data.train.columns[Field.LOGITS].zero_()[:, 3] = 1  # a class without samples
    with pytest.raises(MethodError, match=r"GROOD\.fit: none of 600 training samples"):
        GROOD().fit(data.train, None)
