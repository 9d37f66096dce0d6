"""Each loss against its formula in NumPy and SciPy, float64, from the features that the toy network gives."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logsumexp, softmax
from scipy.stats import entropy
from torch import Tensor, nn
from torch.nn import functional

from openbench.training.base import Batch, StepInfo, TrainingMethod
from openbench.training.methods.contrastive import CIDER
from openbench.training.methods.cross_entropy import CrossEntropy, Dropout, LogitNorm, T2FNorm
from openbench.training.methods.heads import ARPL, GODIN, ConfBranch, RotPred
from openbench.training.methods.outliers import MCD, EnergyBounded, MixOE, OutlierExposure

from .training_toys import CLASSES, FEATURES, array as w, backbone, draws, features

Array = NDArray[np.float64]
N, M = 10, 7


def batch(late: bool = True) -> Batch:
    generator = draws(0)
    labels = torch.arange(N) % CLASSES
    return Batch(
        images=torch.randn(N, 3, 8, 8, generator=generator),
        labels=labels,
        rows=torch.arange(N),
        info=StepInfo(9 if late else 0, 10, 45 if late else 0, 50, draws()),
        outliers=torch.randn(M, 3, 8, 8, generator=generator),
        outlier_rows=torch.arange(M),
    )


def prepared(method: TrainingMethod) -> tuple[nn.Module, nn.Module]:
    """The module that is trained and the toy network inside it, its head far from zero."""
    torch.manual_seed(1)
    network = backbone(dropout=0).initialise(1).module().train()
    with torch.no_grad():
        network.fc.weight.mul_(6)
        network.bn.weight.copy_(torch.linspace(1, 3, FEATURES))
    return method.prepare(network, FEATURES, CLASSES).train(), network


def ce(z: Array, y: NDArray[np.int64]) -> float:
    return float(-log_softmax(z, axis=1)[np.arange(len(y)), y].mean())


def z_of(network: nn.Module, f: Array) -> Array:
    return f @ w(network.fc.weight).T + w(network.fc.bias)


def found(method: TrainingMethod, model: nn.Module, given: Batch) -> float:
    return float(method.loss(model, given).detach())


def check(method: TrainingMethod, expected: Any, given: Batch | None = None) -> None:
    """`expected(network, model, batch, y)` is the loss."""
    given = given or batch()
    model, network = prepared(method)
    value = expected(network, model, given, given.labels.numpy())
    assert found(method, model, given) == pytest.approx(value, rel=2e-5)


def test_cross_entropy() -> None:
    check(CrossEntropy(), lambda net, _, b, y: ce(z_of(net, features(net, b.images)), y))


def test_cross_entropy_of_mixed_labels_is_that_of_the_mixed_distribution() -> None:
    def expected(net, _, b, y):
        soft = 0.3 * np.eye(CLASSES)[y] + 0.7 * np.eye(CLASSES)[b.partners]
        return -(soft * log_softmax(z_of(net, features(net, b.images)), axis=1)).sum(axis=1).mean()

    check(CrossEntropy(), expected, replace(batch(), partners=batch().labels.roll(1), share=0.3))


@pytest.mark.parametrize("tau", [0.04, 1.0])
def test_logitnorm(tau: float) -> None:
    def expected(net, _, b, y):
        z = z_of(net, features(net, b.images))
        return ce(np.array([row / (np.sqrt((row**2).sum()) + 1e-7) / tau for row in z]), y)

    check(LogitNorm(temperature=tau), expected)


def test_t2fnorm() -> None:
    def expected(net, _, b, y):
        f = features(net, b.images)
        return ce(z_of(net, np.array([row / np.sqrt((row**2).sum()) / 0.1 for row in f])), y)

    check(T2FNorm(), expected)


def test_t2fnorm_divides_features_by_the_temperature_at_test_time() -> None:
    method = T2FNorm(temperature=0.2)
    model, network = prepared(method)
    model.eval()
    network.bn.train()  # so that `features` holds
    images = batch().images
    f = features(network, images)
    with torch.no_grad():
        np.testing.assert_allclose(model(images).numpy(), z_of(network, f / 0.2), rtol=1e-4, atol=1e-5)
        surface = method.eval_model(model)
        surface.network.bn.train()
        np.testing.assert_allclose(surface.module(images).numpy(), z_of(network, f / 0.2), rtol=1e-4, atol=1e-5)


def joint(net: nn.Module, first: Tensor, second: Tensor) -> tuple[Array, Array]:
    f = features(net, torch.cat([first, second]))
    return f[: len(first)], f[len(first) :]


def test_outlier_exposure_is_the_cross_entropy_to_uniform() -> None:
    def expected(net, _, b, y):
        f, out = joint(net, b.images, b.outliers)
        uniform = -log_softmax(z_of(net, out), axis=1).mean()
        return ce(z_of(net, f), y) + 0.5 * uniform

    check(OutlierExposure(), expected)


def test_energy_bounds() -> None:
    given = batch()
    model, network = prepared(EnergyBounded())
    f, out = joint(network, given.images, given.outliers)
    inside, outside = (-logsumexp(z_of(network, part), axis=1) for part in (f, out))
    m_in = float(np.median(inside))
    m_out = float(max(np.median(outside), m_in + 0.1))
    above = [max(0, e - m_in) ** 2 for e in inside]
    below = [max(0, m_out - e) ** 2 for e in outside]
    assert 0 < np.count_nonzero(above) < N
    assert np.count_nonzero(below) > 0
    expected = ce(z_of(network, f), given.labels.numpy()) + 0.1 * (np.mean(above) + np.mean(below))
    assert found(EnergyBounded(m_in=m_in, m_out=m_out), model, given) == pytest.approx(expected, rel=2e-5)


@pytest.mark.parametrize("mix", ["linear", "cutmix"])
def test_mixoe(mix: str) -> None:
    method = MixOE(mix=mix, alpha=2.0, weight=0.7)
    given = batch()
    model, network = prepared(method)
    mixed, share = method.mixed(given.images, given.outliers, draws())
    assert 0 < share < 1
    f, blended = joint(network, given.images, mixed)
    soft = share * np.eye(CLASSES)[given.labels[:M]] + (1 - share) / CLASSES
    expected = ce(z_of(network, f), given.labels.numpy())
    expected += 0.7 * -(soft * log_softmax(z_of(network, blended), axis=1)).sum(axis=1).mean()
    assert found(method, model, given) == pytest.approx(expected, rel=2e-5)


def test_mixtures_of_mixoe_have_the_share_that_their_label_says() -> None:
    ones, zeros = torch.ones(4, 3, 8, 8), torch.zeros(4, 3, 8, 8)
    shares = []
    for mix in ("linear", "cutmix"):
        for seed in range(20):
            mixed, share = MixOE(mix=mix, alpha=1.0).mixed(ones, zeros, draws(seed))
            assert float(mixed.mean()) == pytest.approx(share, abs=1e-6)
            shares.append(share)
    assert len({round(s, 6) for s in shares}) > 20


def test_conf_branch() -> None:
    def expected(net, model, b, y):
        f = features(net, b.images)
        branch = model.branches["confidence"]
        c = expit(f @ w(branch.weight)[0] + w(branch.bias)[0])
        hinted = torch.rand(N, generator=draws()).numpy() < 0.5
        assert 0 < hinted.sum() < N
        p = softmax(z_of(net, f), axis=1)
        helped = [ci * pi + (1 - ci) * np.eye(CLASSES)[yi] for ci, pi, yi in zip(c, p, y, strict=True)]
        chosen = np.where(hinted[:, None], helped, p)
        return -np.log(chosen[np.arange(N), y]).mean() + 0.1 * -np.log(c).mean()

    check(ConfBranch(), expected)


@pytest.mark.parametrize(("budget", "factor"), [(10.0, 1 / 1.01), (0.01, 1 / 0.99)])
def test_weight_of_confidence_moves_towards_the_budget(budget: float, factor: float) -> None:
    method = ConfBranch(budget=budget)
    model, _ = prepared(method)
    for _ in range(3):
        method.loss(model, batch())
    assert float(model.weight) == pytest.approx(0.1 * factor**3, rel=1e-5)


def test_rotpred() -> None:
    def expected(net, model, b, y):
        turns = [np.rot90(b.images.numpy(), k, axes=(2, 3)).copy() for k in range(4)]
        f = features(net, torch.from_numpy(np.concatenate(turns)))
        rotation = f @ w(model.rotation.weight).T + w(model.rotation.bias)
        return ce(z_of(net, f[:N]), y) + ce(rotation, np.repeat(np.arange(4), N))

    check(RotPred(), expected)


def test_godin() -> None:
    def expected(net, model, b, y):
        f = features(net, b.images)
        linear, norm, _ = model.g
        u = f @ w(linear.weight)[0] + w(linear.bias)[0]
        u = (u - u.mean()) / np.sqrt(u.var() + norm.eps) * w(norm.weight)[0] + w(norm.bias)[0]
        weights = w(model.weight)
        h = [[fi @ wk / np.linalg.norm(fi) / np.linalg.norm(wk) for wk in weights] for fi in f]
        return ce(np.array(h) / expit(u)[:, None], y)

    check(GODIN(), expected)


def test_class_weights_of_godin_have_no_weight_decay_and_in_openoods_form_a_constant_rate() -> None:
    for compat, constant in (("paper", False), ("openood", True)):
        method = GODIN(compat=compat)
        model, network = prepared(method)
        rest, own = method.parameter_groups(model)
        assert [p is model.weight for p in own["params"]] == [True]
        assert (own["weight_decay"], own["lr_constant"]) == (0.0, constant)
        others = {id(p) for p in rest["params"]}
        assert others == {id(p) for p in model.parameters()} - {id(model.weight)} - {
            id(p) for p in network.fc.parameters()
        }


@pytest.mark.parametrize("compat", ["paper", "openood"])
@pytest.mark.parametrize("margin", [1.2, -5.0])
def test_mcd(compat: str, margin: float) -> None:
    def expected(net, model, b, y):
        f, out = joint(net, b.images, b.outliers)
        head = model.branches["second_head"]
        z2 = f @ w(head.weight).T + w(head.bias)
        p = [softmax(z_of(net, out), axis=1), softmax(out @ w(head.weight).T + w(head.bias), axis=1)]
        if compat == "paper":
            h1, h2 = (np.mean([entropy(row) for row in q]) for q in p)
        else:
            h1, h2 = ((-q * np.log(q)).sum(axis=0).mean() for q in p)
        return ce(z_of(net, f), y) + ce(z2, y) + max(0.0, margin - (h1 - h2))

    check(MCD(margin=margin, compat=compat), expected)


def test_mcd_begins_without_outliers() -> None:
    def expected(net, model, b, y):
        f, head = features(net, b.images), model.branches["second_head"]
        return ce(z_of(net, f), y) + ce(f @ w(head.weight).T + w(head.bias), y)

    check(MCD(), expected, batch(late=False))


def test_arpl() -> None:
    def expected(net, model, b, y):
        f, points, total = features(net, b.images), w(model.points), 0.0
        for fi, yi in zip(f, y, strict=True):
            square = np.array([((fi - p) ** 2).mean() for p in points])
            logits = square - points @ fi
            total += -log_softmax(logits)[yi] + 0.1 * max(0.0, square[yi] - 0.25 + 1)
        return total / N

    method = ARPL()
    given = batch()
    model, network = prepared(method)
    with torch.no_grad():
        model.radius.fill_(0.25)
    assert found(method, model, given) == pytest.approx(expected(network, model, given, given.labels.numpy()), rel=2e-5)


def test_dropout_before_the_classifier() -> None:
    def expected(net, _, b, y):
        f = features(net, b.images)
        kept = torch.rand(f.shape, generator=draws()).numpy() >= 0.4
        assert 0.4 < kept.mean() < 0.8
        return ce(z_of(net, np.where(kept, f / 0.6, 0.0)), y)

    check(Dropout(probability=0.4), expected)


def sequential(prototypes: Array, h: Array, y: NDArray[np.int64], keep: float) -> Array:
    """The moving average as the paper has it: one sample after the other."""
    p = prototypes.copy()
    for hi, yi in zip(h, y, strict=True):
        step = keep * p[yi] + (1 - keep) * hi
        p[yi] = step / np.linalg.norm(step)
    return p


def on_sphere(method: CIDER) -> tuple[nn.Module, nn.Module]:
    model, network = prepared(method)
    for buffer in (model.prototypes, model.directions):
        buffer.copy_(functional.normalize(torch.randn(buffer.shape, generator=draws(5)), dim=1))
    return model, network


def test_cider() -> None:
    method = CIDER(weight=1.5, temperature=0.2, keep=0.6, width=5)
    given = batch()
    given = replace(given, labels=torch.tensor([0, 0, 0, 0, 1, 2, 0, 1, 0, 0]))
    model, network = on_sphere(method)
    first, _, second = model.project
    f = features(network, given.images)
    hidden = np.maximum(f @ w(first.weight).T + w(first.bias), 0)
    h = hidden @ w(second.weight).T + w(second.bias)
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    p = sequential(w(model.prototypes), h, given.labels.numpy(), 0.6)
    directions = sequential(
        w(model.directions), f / np.linalg.norm(f, axis=1, keepdims=True), given.labels.numpy(), 0.6
    )
    compact = 0.2 / 0.07 * ce(h @ p.T / 0.2, given.labels.numpy())
    apart = [np.log(np.mean([np.exp(p[i] @ p[j] / 0.2) for j in range(CLASSES) if j != i])) for i in range(CLASSES)]
    assert found(method, model, given) == pytest.approx(1.5 * compact + np.mean(apart), rel=2e-5)
    np.testing.assert_allclose(model.prototypes.numpy(), p, atol=1e-5)
    np.testing.assert_allclose(model.directions.numpy(), directions, atol=1e-5)
