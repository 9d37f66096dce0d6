from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from torch.nn import functional

from openbench.training.base import Batch, features_and_logits
from openbench.training.methods.contrastive import PALM, Projected, assignment

from . import training_toys
from .training_toys import CLASSES, FEATURES, array, backbone

Array = NDArray[np.float64]
METHOD = PALM(weight=0.7, temperature=0.2, keep=0.6, prototypes=4, top=3, epsilon=0.3, width=6)


def batch() -> Batch:
    return training_toys.batch(torch.tensor([0, 0, 0, 0, 1, 2, 0, 1, 0, 0, 2, 1]))


def model_of(method: PALM = METHOD) -> Projected:
    model = training_toys.model_of(method)
    model.prototypes.copy_(functional.normalize(torch.randn(model.prototypes.shape), dim=2))
    return model


def embedded(model: Projected, given: Batch) -> Array:
    f = array(features_and_logits(model.network, given.images)[0])
    w1, b1, w2, b2 = map(array, model.project.parameters())
    h = np.maximum(f @ w1.T + b1, 0) @ w2.T + b2
    return h / np.linalg.norm(h, axis=1, keepdims=True)


def transported(h: Array, p: Array, epsilon: float, rounds: int = 3) -> Array:
    """Sinkhorn on the matrix itself, prototypes as rows: each to 1/K, then each sample to 1/B; times B at the end."""
    q = np.exp(p @ h.T / epsilon)
    q /= q.sum()
    for _ in range(rounds):
        for row in q:
            row /= row.sum() * len(q)
        for column in q.T:
            column /= column.sum() * q.shape[1]
    return q.T * q.shape[1]


def kept(weights: Array, top: int) -> Array:
    """The `top` largest weights of a sample, scaled to sum 1; zero elsewhere."""
    chosen = np.zeros_like(weights)
    best = np.argsort(-weights)[:top]
    chosen[best] = weights[best] / weights[best].sum()
    return chosen


def published(method: PALM, p: Array, h: Array, y: NDArray[np.int64]) -> tuple[float, Array]:
    """The loss and the moved prototypes (c·count, width), sample by sample and prototype by prototype."""
    c, count = CLASSES, method.prototypes
    own = [np.arange(c * count) // count == yi for yi in y]
    q = transported(h, p, method.epsilon)
    first = np.array([kept(np.where(mask, row, 0.0), method.top) for row, mask in zip(q, own, strict=True)])
    new = p.copy()
    for k in range(len(p)):
        if first[:, k].sum() > 0:
            mean = sum(w * hi for w, hi in zip(first[:, k] / first[:, k].sum(), h, strict=True))
            new[k] = method.keep * p[k] + (1 - method.keep) * mean
            new[k] /= np.linalg.norm(new[k])
    q = transported(h, new, method.epsilon)
    total = 0.0
    for hi, row, chosen in zip(h, q, first > 0, strict=True):
        weights = np.where(chosen, row, 0.0) / row[chosen].sum()
        logits = new @ hi / method.temperature
        total -= (weights * logits).sum() - logsumexp(logits)
    apart = 0.0
    for i in range(len(new)):
        s = [new[i] @ new[j] / 0.5 for j in range(len(new)) if j != i]
        friends = [new[i] @ new[j] / 0.5 for j in range(len(new)) if j != i and j // count == i // count]
        apart -= np.mean(friends) - np.log(np.sum(np.exp(s)))
    return total / len(h) + method.weight * apart / len(new), new


@pytest.mark.parametrize("change", [{}, {"top": 4}, {"top": 1, "keep": 0.0}, {"epsilon": 0.05, "iterations": 3}])
def test_loss_and_moved_prototypes_equal_the_formula(change) -> None:
    method = replace(METHOD, **change)
    model, given = model_of(method), batch()
    h, y = embedded(model, given), given.labels.numpy()
    expected, moved = published(method, model.prototypes.double().flatten(0, 1).numpy(), h, y)
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=3e-5)
    np.testing.assert_allclose(model.prototypes.flatten(0, 1).numpy(), moved, atol=2e-5)
    assert not model.prototypes.requires_grad


def test_assignment_gives_samples_weight_one_and_in_the_end_prototypes_equal_weight() -> None:
    cosines = 2 * torch.rand(30, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    for rounds in (1, 3):
        q = assignment(cosines, 0.1, rounds).exp()
        np.testing.assert_allclose(q.sum(dim=1), np.ones(30), rtol=1e-9)
    np.testing.assert_allclose(assignment(cosines, 0.1, 500).exp().sum(dim=0), np.full(6, 5.0), rtol=1e-6)


def test_prototypes_of_classes_that_are_not_in_the_batch_stay() -> None:
    model = model_of()
    before = model.prototypes.clone()
    given = batch()
    METHOD.loss(model, replace(given, labels=torch.zeros(12, dtype=torch.int64)))
    torch.testing.assert_close(model.prototypes[1:], before[1:])
    assert not torch.allclose(model.prototypes[0], before[0])


def test_likelihood_takes_the_moved_prototypes_as_fixed() -> None:
    method, given = replace(METHOD, weight=0.0), batch()
    model, fixed = model_of(), model_of()
    before = model.prototypes.clone()
    method.loss(model, given).backward()
    h = fixed.embed(given.images)[1]
    log_q = assignment(h.detach() @ before.flatten(0, 1).T, METHOD.epsilon, METHOD.iterations)
    own = log_q.view(12, CLASSES, 4)[torch.arange(12), given.labels]
    method.likelihood(model.prototypes, h, given.labels, own.topk(3, dim=1).indices).backward()
    torch.testing.assert_close(model.network.conv.weight.grad, fixed.network.conv.weight.grad, rtol=1e-4, atol=1e-7)


def test_prototypes_begin_as_unit_directions_without_negative_coordinates() -> None:
    torch.manual_seed(0)
    model = METHOD.prepare(backbone().module(), FEATURES, CLASSES)
    assert model.prototypes.shape == (CLASSES, 4, 6)
    assert (model.prototypes >= 0).all()
    torch.testing.assert_close(model.prototypes.norm(dim=2), torch.ones(CLASSES, 4))
