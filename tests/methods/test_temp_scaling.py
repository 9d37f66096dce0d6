import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import log_softmax, softmax

from openbench.methods import logits
from openbench.methods.logits import TempScaling

from .problems import KINDS, assert_equal, given, problem, scores, y, z


def likelihood_slope(inverse: float, logits: np.ndarray, labels: np.ndarray) -> float:
    """Derivative of the mean negative log-likelihood by 1/T: E_p[z] − z_y, averaged."""
    expected = (softmax(inverse * logits, axis=1) * logits).sum(axis=1)
    return float((expected - logits[np.arange(len(labels)), labels]).mean())


def nll(temperature: float, logits: np.ndarray, labels: np.ndarray) -> float:
    return -float(log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("kind", KINDS)
def test_converged_temperature_is_the_root_of_the_likelihood_slope(kind):
    data = problem(kind)
    logits, labels = z(data.val), y(data.val)
    inverse = brentq(likelihood_slope, 1e-4, 1e3, args=(logits, labels), xtol=1e-14)
    method = TempScaling("converged").fit(data.val, None)
    assert float(method.temperature_) == pytest.approx(1 / inverse, rel=1e-4)


@pytest.mark.parametrize("solver", ["lbfgs", "converged"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_softmax_at_the_learnt_temperature(kind, solver):
    data = problem(kind)
    method = TempScaling(solver)
    found = scores(method, data)
    assert_equal(found, -softmax(z(data.test) / float(method.temperature_), axis=1).max(axis=1))


@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes"])
def test_the_published_steps_move_from_one_and_a_half_towards_the_optimum(kind):
    data = problem(kind)
    steps, best = (float(TempScaling(s).fit(data.val, None).temperature_) for s in ("lbfgs", "converged"))
    assert min(1.5, best) - 1e-3 <= steps <= max(1.5, best) + 1e-3
    assert nll(steps, z(data.val), y(data.val)) < nll(1.5, z(data.val), y(data.val))


@pytest.mark.parametrize("solver", ["lbfgs", "converged"])
def test_the_temperature_is_of_all_samples_however_many_are_read_at_a_time(solver, monkeypatch):
    data = problem()
    whole = TempScaling(solver).fit(data.val, None).temperature_
    monkeypatch.setattr(logits, "_ROWS", 7)
    torch.testing.assert_close(TempScaling(solver).fit(data.val, None).temperature_, whole, rtol=1e-5, atol=0)


def test_the_published_steps_stop_short_of_a_distant_optimum():
    """Steps of .01 do not get from 1.5 to 50 in 50 iterations: published temperatures need not be optimal ones."""
    data = problem("hot")
    steps, best = (float(TempScaling(s).fit(data.val, None).temperature_) for s in ("lbfgs", "converged"))
    assert best > 10
    assert 1.6 < steps < best / 2


def test_calibrated_logits_keep_their_temperature():
    """Labels drawn from softmax(z / 2.5): the optimum tends to T = 2.5."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(60_000, 5, generator=generator)
    labels = torch.multinomial(torch.softmax(logits / 2.5, dim=1), 1, generator=generator)[:, 0]
    method = TempScaling("converged").fit(given(logits=logits, labels=labels), None)
    assert float(method.temperature_) == pytest.approx(2.5, rel=0.02)
