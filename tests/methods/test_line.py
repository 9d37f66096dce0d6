import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from openbench.methods.shaping import LINe

from .problems import KINDS, assert_blocks_leave_no_trace, assert_equal, f, problem, scores, y


def contributions(data) -> np.ndarray:
    """Mean over a class' samples of feature times the gradient, by autograd, of the true class' logit (C, d)."""
    features = torch.tensor(f(data.train), requires_grad=True)
    logits = features @ torch.tensor(data.weight).T + torch.tensor(data.bias)
    (gradient,) = torch.autograd.grad(logits[torch.arange(len(logits)), data.train.labels].sum(), features)
    taylor, labels = (features * gradient).detach().numpy(), y(data.train)
    average = f(data.train).mean(axis=0)
    classes = range(len(data.bias))
    return np.stack([taylor[labels == c].mean(axis=0) if c in labels else average * data.weight[c] for c in classes])


def by_samples(data, weight_percentile: float, activation_percentile: float, clip: float) -> np.ndarray:
    """Logits of test samples, one by one."""
    importance, logits = contributions(data), []
    for row in f(data.test).clip(max=clip):
        own = importance[(data.weight @ row + data.bias).argmax()]
        strength = np.abs(own) * data.weight
        weight = np.where(strength > np.percentile(strength, weight_percentile), data.weight, 0)
        logits.append(weight @ np.where(own > np.percentile(own, activation_percentile), row, 0) + data.bias)
    return np.array(logits)


@pytest.mark.parametrize(("weights", "neurons", "clip"), [(10, 10, 0.8), (90, 90, 1.0), (90, 10, 1.0), (25, 60, 2.5)])
@pytest.mark.parametrize(("kind", "n"), [(kind, 30 if kind == "many_classes" else 200) for kind in KINDS])
def test_equals_masks_sample_by_sample(kind, n, weights, neurons, clip):
    data = problem(kind, n)
    expected = -logsumexp(by_samples(data, weights, neurons, clip), axis=1)
    assert_equal(scores(LINe(weights, neurons, clip), data), expected, rtol=1e-4)


def test_class_scores_are_what_probabilities_of_pruned_logits_lack():
    data = problem(n=100)
    found = LINe().fit(data.train, data.head).class_scores(data.test)
    np.testing.assert_allclose(found, 1 - softmax(by_samples(data, 10, 10, 0.8), axis=1), atol=1e-5)


def test_blocks_leave_no_trace(monkeypatch):
    assert_blocks_leave_no_trace(LINe(), problem(), monkeypatch, _ENTRIES=500)
