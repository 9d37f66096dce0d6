from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch import nn
from torch.nn import functional

from openbench.training.base import Batch, features_and_logits
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import train
from openbench.training.loop.weights import evaluated
from openbench.training.methods.sngp import SNGP, DistanceAware, Posterior, RandomFeatures, SpectralBound, overlap

from . import training_toys
from .training_toys import CLASSES, QUIET, RECIPE, array, backbone, info, job, model_of, reading, sets, trained

Array = NDArray[np.float64]
METHOD = SNGP(RECIPE, random_features=32)
LABELS = torch.arange(10) % CLASSES


def batch(seed: int = 0) -> Batch:
    return training_toys.batch(LABELS, seed=seed)


def prepared(method: SNGP = METHOD) -> DistanceAware:
    model = model_of(method)
    with torch.no_grad():
        model.head.weight.mul_(3)
    return model


def phi_of(model: DistanceAware, images: torch.Tensor) -> Array:
    """Random features φ in float64, entry by entry as the paper has them, after a normalisation."""
    with torch.no_grad():
        h = array(features_and_logits(model.network, images)[0])
    h = (h - h.mean(axis=1, keepdims=True)) / np.sqrt(h.var(axis=1, keepdims=True) + 1e-5)
    v, b = map(array, (model.random.directions, model.random.phases))
    return np.sqrt(2 / len(b)) * np.cos(h @ v.T + b)


def test_loss_is_the_cross_entropy_of_a_linear_function_of_random_features() -> None:
    model, given = prepared(), batch()
    z = METHOD.amplitude * phi_of(model, given.images) @ array(model.head.weight).T
    expected = -log_softmax(z, axis=1)[np.arange(10), LABELS.numpy()].mean()
    assert float(METHOD.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("likelihood", ["gaussian", "softmax"])
def test_precision_is_summed_over_batches_and_variance_is_its_quadratic_form(likelihood: str) -> None:
    method = replace(METHOD, likelihood=likelihood, ridge=0.7)
    model = prepared(method)
    k = CLASSES if likelihood == "softmax" else 1
    precision = np.tile(0.7 * np.eye(32), (k, 1, 1))
    for seed in range(4):
        phi = phi_of(model, batch(seed).images)
        p = softmax(method.amplitude * phi @ array(model.head.weight).T, axis=1)
        weights = p * (1 - p) if likelihood == "softmax" else np.ones((10, 1))
        for j in range(k):
            precision[j] += sum(w * np.outer(f, f) for f, w in zip(phi, weights[:, j], strict=True))
        method.loss(model, batch(seed))
    model.eval()
    phi = phi_of(model, batch(9).images)
    expected = np.stack([np.einsum("nd,de,ne->n", phi, np.linalg.inv(p), phi) for p in precision], axis=1)
    with torch.no_grad():
        found = method.eval_model(model).module.variance(torch.from_numpy(method.amplitude * phi))
    assert model.posterior.information.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_each_epoch_begins_with_an_empty_posterior() -> None:
    model = prepared()
    METHOD.loss(model, batch())
    assert model.posterior.information.abs().sum() > 0
    METHOD.on_epoch_start(model, info(1), sets())
    assert model.posterior.information.abs().sum() == 0


def test_random_features_have_the_gaussian_kernel() -> None:
    torch.manual_seed(0)
    h = torch.randn(6, 15)
    phi = RandomFeatures(15, 200_000, 0.8)(h).double()
    normal = functional.layer_norm(h, (15,)).double().numpy()
    expected = RBF(0.8 * np.sqrt(15))(normal)
    np.testing.assert_allclose(phi @ phi.T, expected, atol=0.01)


def test_variance_is_that_of_a_gaussian_process() -> None:
    """With w = 1 and prior variance 1 it is the latent variance of GP regression with unit noise."""
    torch.manual_seed(0)
    random, posterior = RandomFeatures(4, 1000, 0.5, 3.0), Posterior(1000, 1, 3.0)
    seen, new = torch.randn(30, 4), torch.randn(5, 4)
    posterior.add(random(seen), torch.ones(30, 1))
    process = GaussianProcessRegressor(RBF(0.5 * 2), alpha=1.0, optimizer=None)
    process.fit(functional.layer_norm(seen, (4,)).numpy(), np.zeros(30))
    expected = process.predict(functional.layer_norm(new, (4,)).numpy(), return_std=True)[1] ** 2
    np.testing.assert_allclose(posterior.variance(1.0)(random(new))[:, 0].numpy(), expected, atol=0.05)


def operator(layer: nn.Module, shape: tuple[int, ...]) -> Array:
    """A layer without its bias as a dense matrix, column by column."""
    units = torch.eye(int(np.prod(shape))).view(-1, *shape)
    with torch.no_grad():
        return array((layer(units) - layer(torch.zeros(1, *shape))).flatten(1).T)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 5, 3, padding=1)
        self.strided = nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False)
        self.tall = nn.Conv2d(2, 4, (5, 1), padding=(2, 0), groups=2)
        self.point = nn.Conv2d(2, 6, 1, stride=2)
        self.linear = nn.Linear(12, 7)


SHAPES = {"wide": (2, 9, 9), "strided": (2, 9, 9), "tall": (2, 9, 9), "point": (2, 9, 9), "linear": (12,)}


@pytest.mark.parametrize("name", SHAPES)
def test_no_layer_stretches_more_than_the_bound(name: str) -> None:
    torch.manual_seed(0)
    network = Layers()
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(30)
    bound = SpectralBound(network, 2.5)
    for _ in range(200):
        bound.hold(network)
    norm = np.linalg.norm(operator(network.get_submodule(name), SHAPES[name]), 2)
    assert norm < 2.5 * 1.001
    # Not by far: what is held is the norm of the weights times what windows may add.
    weight = array(network.get_submodule(name).weight.flatten(1))
    assert overlap(network.get_submodule(name)) * np.linalg.norm(weight, 2) == pytest.approx(2.5, rel=1e-3)
    assert norm > 2.5 / 2.5


def test_weights_under_the_bound_and_skipped_layers_are_left_alone() -> None:
    network = Layers()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    SpectralBound(network, 100.0).hold(network)
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    SpectralBound(network, 0.01, skip=network.linear).hold(network)
    changed = {k for k, v in network.state_dict().items() if not torch.equal(before[k], v)}
    assert changed == {"wide.weight", "strided.weight", "tall.weight", "point.weight"}


def test_bound_holds_after_every_step_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = replace(METHOD, bound=0.9, recipe=replace(RECIPE, lr=0.5))
    norms = []

    def watched(model, images, autocast, *rest):
        norms.append(3 * np.linalg.norm(array(model.network.conv.weight.flatten(1)), 2))
        return accuracy_of(model, images, autocast, *rest)

    accuracy_of = loop.accuracy_of
    monkeypatch.setattr(loop, "accuracy_of", watched)
    train(job(method), tmp_path, QUIET)
    assert len(norms) == RECIPE.epochs
    assert max(norms) < 0.9 * 1.02
    assert norms[-1] > 0.9 * 0.9, "the bound is reached, or nothing was tested"


def test_what_is_evaluated_has_the_variance_as_a_layer_and_the_mode_as_its_head(tmp_path: Path) -> None:
    made = job(METHOD)
    checkpoint = trained(made, tmp_path)
    weights = backbone().load(checkpoint.weights).module().state_dict()
    found = evaluated(made, checkpoint)
    kept = found.module().network.state_dict()
    assert all(torch.equal(kept[k], v) for k, v in weights.items()), "evaluation must not touch the weights"
    images = sets().train.images(torch.arange(70))
    outputs = found.outputs(images, reading("variance"))
    assert outputs.features.shape == (70, 32)
    assert outputs.maps["variance"].shape == (70, 1)
    squares = (outputs.features / METHOD.amplitude).square().sum(dim=1)
    assert bool((outputs.maps["variance"][:, 0] > 0).all())
    assert bool((outputs.maps["variance"][:, 0] < squares).all()), "what was seen makes the prior narrower"
