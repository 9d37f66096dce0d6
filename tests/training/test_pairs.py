"""Losses on pairs of images and what is learnt from them: ReweightOOD, SupCon, CSI."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logsumexp
from torch import nn
from torch.nn import functional

from openbench.core.request import Field, Request
from openbench.training.base import Batch, StepInfo, TrainingMethod, features_and_logits
from openbench.training.loop._loop import train
from openbench.training.loop.weights import evaluated, obtain
from openbench.training.methods.csi import CSI
from openbench.training.methods.fine_tuning import FineTuning
from openbench.training.methods.reweightood import ReweightOOD
from openbench.training.methods.supcon import SupCon

from .training_toys import CLASSES, FEATURES, QUIET, RECIPE, backbone, job

Array = NDArray[np.float64]
LABELS = torch.tensor([0, 0, 1, 2, 1, 0, 2, 1])

ALL = frozenset({Field.FEATURES, Field.LOGITS, Field.MAPS})


def batch(labels: torch.Tensor = LABELS) -> Batch:
    images = torch.randn(len(labels), 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return Batch(images, labels, torch.arange(len(labels)), StepInfo(1, 2, 5, 10, torch.Generator().manual_seed(3)))


def prepared(method: TrainingMethod) -> nn.Module:
    torch.manual_seed(1)
    return method.prepare(backbone(dropout=0).initialise(1).module(), FEATURES, CLASSES).train()


def sphere(model: nn.Module, images: torch.Tensor) -> Array:
    """Unit projections in float64, from the features that the network gives for this batch."""
    with torch.no_grad():
        f = features_and_logits(model.network, images)[0].double().numpy()
    first, _, second = model.project
    w = [p.detach().double().numpy() for p in (first.weight, first.bias, second.weight, second.bias)]
    h = np.maximum(f @ w[0].T + w[1], 0) @ w[2].T + w[3]
    return h / np.linalg.norm(h, axis=1, keepdims=True)


def pair_loss(h: Array, y: Array, method: ReweightOOD) -> float:
    """The formula of the paper, pair by pair."""
    together, apart = [], []
    for i in range(len(h)):
        for j in range(i + 1, len(h)):
            s = float(h[i] @ h[j])
            if y[i] == y[j]:
                together.append(-expit(-(method.m_w * s - method.c_w)) * s / method.temperature)
            else:
                apart.append(expit(method.m_b * s - method.c_b) * s / method.temperature)
    total = logsumexp(together) + logsumexp(apart)
    return total if total > 0 else np.expm1(total)


@pytest.mark.parametrize(
    "method", [ReweightOOD(), ReweightOOD(temperature=5.0, m_b=30.0, c_b=90.0, m_w=1.0, c_w=-99.0)]
)
def test_reweightood_equals_the_formula_pair_by_pair(method: ReweightOOD) -> None:
    model, given = prepared(method), batch()
    expected = pair_loss(sphere(model, given.images), given.labels.numpy(), method)
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


def test_no_gradient_flows_through_the_weights_of_pairs() -> None:
    """With frozen weights the loss is logsumexp of multiples of s: its derivative is the softmax times −w/τ."""
    method = ReweightOOD()
    s = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64, requires_grad=True)
    for value, weight in (
        (method.of_one_class(s), -expit(1 - 2 * s.detach().numpy())),
        (method.of_two_classes(s), expit(5 * s.detach().numpy() - 4)),
    ):
        (gradient,) = torch.autograd.grad(value, s)
        terms = weight * s.detach().numpy() / 0.1
        np.testing.assert_allclose(gradient.numpy(), np.exp(terms - logsumexp(terms)) * weight / 0.1, rtol=1e-9)


def supervised_contrast(h: Array, y: Array, tau: float) -> float:
    terms = []
    for i in range(len(h)):
        others = [a for a in range(len(h)) if a != i]
        log_p = dict(zip(others, log_softmax([h[i] @ h[a] / tau for a in others]), strict=True))
        positive = [a for a in others if y[a] == y[i]]
        terms.append(-np.mean([log_p[p] for p in positive]) if positive else 0.0)
    return float(np.mean(terms))


def test_supcon_equals_the_formula_anchor_by_anchor() -> None:
    method = SupCon(temperature=0.3, width=5)
    labels = torch.tensor([0, 0, 1, 2, 1, 0, 0, 1])  # the image of class 2 has no partner
    model, given = prepared(method), batch(labels)
    expected = supervised_contrast(sphere(model, given.images), labels.numpy(), 0.3)
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


def test_turned_views_are_classes_of_their_own() -> None:
    method = SupCon(temperature=0.3, width=5, rotations=4)
    model, given = prepared(method), batch()
    turned = np.concatenate([np.rot90(given.images.numpy(), r, (2, 3)) for r in range(4)])
    pairs = [(int(y), r) for r in range(4) for y in LABELS]
    names = np.array([pairs.index(p) for p in pairs])
    expected = supervised_contrast(sphere(model, torch.from_numpy(turned.copy())), names, 0.3)
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("method", [ReweightOOD(), SupCon(), SupCon(rotations=4)])
def test_directions_become_the_class_means_of_the_images_as_they_are(method: TrainingMethod) -> None:
    """An average that keeps 0.95: many views of the same batch end at its class mean directions."""
    model, given = prepared(method), batch()
    model.directions.copy_(functional.normalize(torch.ones_like(model.directions), dim=1))
    images = given.images
    if method == SupCon(rotations=4):
        # Batch norm sees all turns in training; statistics that stay the same make both sides comparable.
        model.network.eval()
    for _ in range(200):
        with torch.no_grad():
            method.loss(model, given)
    with torch.no_grad():
        f = functional.normalize(features_and_logits(model.network, images)[0], dim=1)
    means = torch.stack([f[k == LABELS].sum(dim=0) for k in range(CLASSES)])
    cosines = (functional.normalize(means, dim=1) * model.directions).sum(dim=1)
    assert float(cosines.min()) > 0.999


CSI_METHOD = CSI(RECIPE, FineTuning(3, 0.05), width=8)


def test_csi_loss_is_that_of_two_linear_heads() -> None:
    model, given = prepared(CSI_METHOD), batch()
    n = len(LABELS)
    turned = torch.cat([torch.rot90(given.images, r, (2, 3)) for r in range(4)])
    model.network.eval()
    with torch.no_grad():
        f = features_and_logits(model.network, turned)[0].double().numpy()
    model.train()
    head, joint = ([p.detach().double().numpy() for p in h.parameters()] for h in (model.network.fc, model.joint))
    y = LABELS.numpy()
    own = log_softmax(f[:n] @ head[0].T + head[1], axis=1)[np.arange(n), y].mean()
    log_joint = log_softmax(f @ joint[0].T + joint[1], axis=1).reshape(4, n, 4, CLASSES)
    both = np.mean([log_joint[r, i, r, y[i]] for r in range(4) for i in range(n)])
    assert float(CSI_METHOD.loss(model, given).detach()) == pytest.approx(-own - both, rel=2e-5)


def test_csi_leaves_the_contrastive_network_as_it_is_and_trains_the_heads(tmp_path: Path) -> None:
    made = job(CSI_METHOD)
    first = obtain(made.initial, tmp_path, lambda folder: train(made.initial, folder, QUIET))
    last = obtain(made, tmp_path, lambda folder: train(made, folder, QUIET, first.weights))
    before, after = (backbone().load(c.weights).module().state_dict() for c in (first, last))
    for name in before:
        assert torch.equal(before[name], after[name]) != name.startswith("fc."), name


def test_csi_averages_the_logits_of_each_turn_for_that_turn(tmp_path: Path) -> None:
    made = job(CSI_METHOD)
    first = obtain(made.initial, tmp_path, lambda folder: train(made.initial, folder, QUIET))
    found = evaluated(made, obtain(made, tmp_path, lambda folder: train(made, folder, QUIET, first.weights)))
    images = batch().images
    outputs = found.outputs(images, Request(fields=ALL, layers=("turned",), pool="mean"))
    joint = found.module().joint
    expected = []
    for r in range(4):
        turned = found.outputs(torch.rot90(images, r, (2, 3)), Request(fields=frozenset({Field.FEATURES})))
        expected.append(joint(turned.features).detach()[:, CLASSES * r : CLASSES * r + CLASSES])
    torch.testing.assert_close(outputs.maps["turned"], torch.stack(expected).mean(dim=0), rtol=1e-4, atol=1e-4)
    plain = found.outputs(images, Request())
    torch.testing.assert_close(outputs.logits, plain.logits)


def test_csi_starts_from_the_checkpoint_of_supcon_over_rotations() -> None:
    assert CSI_METHOD.initial == SupCon(RECIPE, temperature=0.07, rotations=4, width=8)
    assert CSI_METHOD.schedule == replace(RECIPE, epochs=3, lr=0.05)
