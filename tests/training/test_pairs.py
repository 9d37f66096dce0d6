"""Losses on pairs of images and what is learnt from them: ReweightOOD, SupCon, CSI; CIDER's last stage."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from scipy.special import expit, log_softmax, logsumexp
from torch import nn
from torch.nn import functional

from openbench import _compat
from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.core.request import Field, Request
from openbench.errors import ConfigError
from openbench.training.base import features_and_logits
from openbench.training.loop.weights import evaluated
from openbench.training.methods.contrastive import CSI, CIDERLastStage, ReweightOOD, SupCon, last_stage
from openbench.training.methods.cross_entropy import FineTuning

from .training_toys import CLASSES, RECIPE, array, batch, draws, job, model_of, reading, trained

Array = NDArray[np.float64]
LABELS = torch.tensor([0, 0, 1, 2, 1, 0, 2, 1])


def sphere(model: nn.Module, images: torch.Tensor) -> Array:
    """Unit projections in float64, from the features that the network gives for this batch."""
    f = array(features_and_logits(model.network, images)[0])
    w1, b1, w2, b2 = map(array, model.project.parameters())
    h = np.maximum(f @ w1.T + b1, 0) @ w2.T + b2
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
    model, given = model_of(method), batch(LABELS)
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
    model, given = model_of(method), batch(labels)
    expected = supervised_contrast(sphere(model, given.images), labels.numpy(), 0.3)
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


def test_turned_views_are_classes_of_their_own() -> None:
    method = SupCon(temperature=0.3, width=5, rotations=4)
    model, given = model_of(method), batch(LABELS)
    turned = np.concatenate([np.rot90(given.images.numpy(), r, (2, 3)) for r in range(4)])
    pairs = [(int(y), r) for r in range(4) for y in LABELS]
    names = np.array([pairs.index(p) for p in pairs])
    expected = supervised_contrast(sphere(model, torch.from_numpy(turned.copy())), names, 0.3)
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


CSI_METHOD = CSI(RECIPE, FineTuning(3, 0.05), width=8)


def test_csi_loss_is_that_of_two_linear_heads() -> None:
    model, given = model_of(CSI_METHOD), batch(LABELS)
    n = len(LABELS)
    turned = torch.cat([torch.rot90(given.images, r, (2, 3)) for r in range(4)])
    f = array(features_and_logits(model.network.eval(), turned)[0])
    model.train()
    head, joint = (list(map(array, part.parameters())) for part in (model.network.fc, model.joint))
    y = LABELS.numpy()
    own = log_softmax(f[:n] @ head[0].T + head[1], axis=1)[np.arange(n), y].mean()
    log_joint = log_softmax(f @ joint[0].T + joint[1], axis=1).reshape(4, n, 4, CLASSES)
    both = np.mean([log_joint[r, i, r, y[i]] for r in range(4) for i in range(n)])
    assert float(CSI_METHOD.loss(model, given).detach()) == pytest.approx(-own - both, rel=2e-5)


def test_csi_trains_the_heads_alone_and_averages_the_logits_of_each_turn_for_that_turn(tmp_path: Path) -> None:
    made = job(CSI_METHOD)
    last = trained(made, tmp_path)
    before, after = (load_file(c.weights) for c in (trained(made.initial, tmp_path), last))
    for name in before:
        assert torch.equal(before[name], after[name]) != name.startswith("fc."), name
    found = evaluated(made, last)
    images = batch(LABELS).images
    outputs = found.outputs(images, reading("turned"))
    joint = found.module().joint
    expected = []
    for r in range(4):
        turned = found.outputs(torch.rot90(images, r, (2, 3)), Request(fields=frozenset({Field.FEATURES})))
        expected.append(joint(turned.features).detach()[:, CLASSES * r : CLASSES * r + CLASSES])
    torch.testing.assert_close(outputs.maps["turned"], torch.stack(expected).mean(dim=0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs.logits, found.outputs(images, Request()).logits)


def test_csi_starts_from_the_checkpoint_of_supcon_over_rotations() -> None:
    assert CSI_METHOD.initial == SupCon(RECIPE, temperature=0.07, rotations=4, width=8)
    assert CSI_METHOD.schedule == replace(RECIPE, epochs=3, lr=0.05)


LAST_STAGE = CIDERLastStage(RECIPE, width=6, tuning=FineTuning(3, 0.05))


def test_last_stage_is_layer4_of_a_resnet() -> None:
    torchvision = _compat.library("torchvision.models")
    for network in (CifarResNet(SPECS["resnet18"], 10), torchvision.resnet18(num_classes=10)):
        assert last_stage(network) is network.layer4


def test_a_network_of_nothing_but_its_classifier_has_no_stage() -> None:
    with pytest.raises(ConfigError, match="no part of Sequential before its classifier has parameters"):
        last_stage(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))


def test_only_the_last_stage_and_the_projection_learn() -> None:
    network = CifarResNet(SPECS["resnet8"], CLASSES)
    model = LAST_STAGE.prepare(network, 64, CLASSES)
    (group,) = LAST_STAGE.parameter_groups(model)
    expected = {*network.layer3.parameters(), *model.project.parameters()}
    assert set(group["params"]) == expected
    assert group["weight_decay"] == LAST_STAGE.weight_decay
    given = replace(batch(torch.arange(6) % 3), images=torch.randn(6, 3, 16, 16, generator=draws(0)))
    model.prototypes.copy_(functional.normalize(torch.randn(CLASSES, 6), dim=1))
    LAST_STAGE.loss(model.train(), given).backward()
    assert {p for p in model.parameters() if p.grad is not None} == expected


def test_training_goes_on_from_cross_entropy_and_leaves_earlier_stages_where_they_were(tmp_path: Path) -> None:
    made = job(LAST_STAGE)
    last, first = (trained(one, tmp_path) for one in (made, made.initial))
    before, after = (load_file(c.weights) for c in (first, last))
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    # The toy's stages with parameters are a convolution and, the last, a batch norm.
    assert unchanged == {"conv.weight", "conv.bias", "fc.weight", "fc.bias"}
    assert LAST_STAGE.schedule == replace(RECIPE, epochs=3, lr=0.05)
