from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from scipy.stats import ks_2samp, multivariate_normal
from torch.nn import functional

from openbench.training.base import Batch, features_and_logits
from openbench.training.methods.virtual_outliers import VOS, Queued, empty_queues

from . import training_toys
from .training_toys import CLASSES, array, info, model_of

METHOD = VOS(queue=20, start=0.4, sample_from=50, weight=0.5)


def batch(epoch: int = 9) -> Batch:
    return training_toys.batch(torch.arange(12) % CLASSES, epoch)


def filled(method: VOS = METHOD) -> Queued:
    model = model_of(method)
    model.queue.copy_(torch.rand(model.queue.shape) + torch.arange(CLASSES)[:, None, None])
    model.seen.fill_(method.queue)
    return model


def own_gradient(model: Queued, method: VOS) -> dict[str, torch.Tensor | None]:
    """The gradient of the regulariser alone: that of the loss less that of the cross-entropy."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    entropy = functional.cross_entropy(features_and_logits(model.network, batch().images)[1], batch().labels)
    plain = torch.autograd.grad(entropy, parameters, allow_unused=True)
    whole = torch.autograd.grad(method.loss(model, batch()), parameters, allow_unused=True)
    return {n: a if b is None or a is None else a - b for n, a, b in zip(names, whole, plain, strict=True)}


def test_the_regulariser_moves_the_network_except_in_openoods_form() -> None:
    for method in (METHOD, replace(METHOD, compat="openood")):
        for name, gradient in own_gradient(filled(method), method).items():
            if name != "network.conv.bias":  # batch norm takes it off again
                still = method.compat == "openood" and name.startswith("network.")
                assert (float(gradient.abs().max()) < 1e-6) == still, (method.compat, name)


@pytest.mark.parametrize("compat", ["paper", "openood"])
def test_loss_equals_the_formula(compat: str) -> None:
    method, model = replace(METHOD, compat=compat), filled()
    model.energy_weight.data[0] = -1.0  # a negative weight counts as zero
    z = array(features_and_logits(model.network, batch().images)[1])
    drawn = METHOD.virtual(model.queue, info())
    z_out = array(model.network.fc(drawn))
    weights = np.maximum(array(model.energy_weight), 0)
    energies = np.concatenate([logsumexp(part, b=weights, axis=1) for part in (z, z_out)])
    a, b = array(model.decide.weight)[:, 0], array(model.decide.bias)
    decisions = log_softmax(energies[:, None] * a + b, axis=1)
    is_id = np.array([1] * 12 + [0] * CLASSES)
    y = batch().labels.numpy()
    expected = -log_softmax(z, axis=1)[np.arange(12), y].mean() - 0.5 * decisions[np.arange(len(is_id)), is_id].mean()
    assert float(method.loss(model, batch()).detach()) == pytest.approx(expected, rel=2e-5)


def least_likely(queue: np.ndarray, rng: np.random.Generator, sample_from: int) -> np.ndarray:
    """The paper's way: draw all, evaluate the density of each, take the least likely; one per class."""
    covariance = np.cov(
        (queue - queue.mean(axis=1, keepdims=True)).reshape(-1, queue.shape[2]), rowvar=False, bias=True
    )
    covariance += 1e-4 * np.eye(len(covariance))
    chosen = []
    for own in queue:
        drawn = rng.multivariate_normal(own.mean(axis=0), covariance, sample_from)
        density = multivariate_normal(own.mean(axis=0), covariance).logpdf(drawn)
        chosen.append(drawn[density.argmin()])
    return np.array(chosen)


def test_virtual_outliers_have_the_distribution_of_the_least_likely_draws() -> None:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(4, 4))
    queue = rng.normal(size=(2, 30, 4)) @ mix + np.array([[[0.0]], [[5.0]]])
    method = replace(METHOD, sample_from=40)
    drawn = [method.virtual(torch.from_numpy(queue).float(), info(seed=s)).numpy() for s in range(500)]
    expected = [least_likely(queue, rng, 40) for _ in range(500)]
    for k in range(2):
        for direction in (*np.eye(4), np.ones(4)):
            ours, theirs = (np.array(x)[:, k] @ direction for x in (drawn, expected))
            assert ks_2samp(ours, theirs).pvalue > 1e-4
        ours, theirs = (((np.array(x)[:, k] - queue[k].mean(axis=0)) ** 2).sum(axis=1) for x in (drawn, expected))
        assert ks_2samp(ours, theirs).pvalue > 1e-4


def test_virtual_outliers_come_class_by_class() -> None:
    queue = torch.rand(3, 20, 5) + 100 * torch.arange(3)[:, None, None]
    drawn = replace(METHOD, select=4).virtual(queue, info())
    assert drawn.shape == (12, 5)
    assert (drawn.mean(dim=1) / 100).round().tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(("epoch", "seen", "virtual"), [(3, 20, False), (4, 20, True), (9, 19, False)])
def test_virtual_outliers_begin_after_the_share_of_epochs_and_with_full_queues(epoch, seen, virtual) -> None:
    model = filled()
    model.seen.fill_(seen)
    given = batch(epoch)
    state = given.info.generator.get_state()
    METHOD.loss(model, given)
    assert torch.equal(given.info.generator.get_state(), state) == (not virtual)


def test_the_weighted_energy_is_evaluated_as_pytorch_ood_has_it_and_without_the_queues() -> None:
    model = filled()
    with torch.no_grad():
        model.energy_weight.copy_(torch.linspace(-0.2, 1.5, CLASSES))
    surface = METHOD.eval_model(model.eval())
    seen = []
    surface.outputs["weighted_energy"].register_forward_hook(lambda *given: seen.append(given[-1]))
    with torch.no_grad():
        logits = surface.module(batch().images)
    expected = np.log((np.maximum(array(model.energy_weight), 0) * np.exp(array(logits))).sum(axis=1))
    np.testing.assert_allclose(seen[0][:, 0], expected, rtol=1e-5)
    assert not any("queue" in name for name in surface.module.state_dict())


LENGTH = 3


def empty(num_classes: int, feature_dim: int) -> Queued:
    return Queued(torch.nn.Identity(), **empty_queues(num_classes, LENGTH, feature_dim))


def test_queues_hold_the_last_features_of_their_class():
    generator = torch.Generator().manual_seed(0)
    queued = empty(4, 2)
    expected = [deque(maxlen=LENGTH) for _ in range(4)]
    for step in range(30):
        n = int(torch.randint(1, 12, (), generator=generator))
        labels, features = torch.randint(0, 3, (n,), generator=generator), torch.randn(n, 2, generator=generator)
        queued.remember(features, labels)
        for feature, label in zip(features.tolist(), labels.tolist(), strict=True):
            expected[label].append(feature)
        for k in range(3):
            rows = queued.queue[k, : min(LENGTH, int(queued.seen[k]))].tolist()
            assert sorted(rows) == sorted(expected[k]), step
        assert not queued.full()  # class 3 has none
    queued.remember(torch.zeros(LENGTH, 2), torch.full((LENGTH,), 3))
    assert queued.full()
