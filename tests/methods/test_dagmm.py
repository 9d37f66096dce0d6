"""DAGMM: its mixture against scipy, its loss against sums by hand, and what training changes."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture

from openbench.methods.tabular import DAGMM, Compression, Mixture

from .problems import given


def drawn(n=400, d=6, seed=0):
    """Samples near a curve, so that one number can code them, and uniform noise around it."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(-1, 1, size=n)
    curve = np.stack([np.sin((j + 1) * t / 2) for j in range(d)], axis=1) + 0.02 * rng.normal(size=(n, d))
    return curve, rng.uniform(-1.5, 1.5, size=(n, d))


def test_moments_of_shared_memberships_are_an_m_step_of_scikit_learn():
    z = np.random.default_rng(0).normal(size=(200, 2))
    model = GaussianMixture(3, random_state=0, max_iter=1, reg_covar=1e-6, warm_start=True)
    membership = np.random.default_rng(1).dirichlet(np.ones(3), size=200)
    model._initialize(z, membership)
    mixture = Mixture.of(torch.tensor(z), torch.tensor(membership))
    np.testing.assert_allclose(mixture.share, model.weights_, rtol=1e-6)
    np.testing.assert_allclose(mixture.mean, model.means_, rtol=1e-6)
    np.testing.assert_allclose(mixture.covariance, model.covariances_, rtol=1e-6, atol=1e-9)


def test_energy_is_minus_the_log_density_of_the_mixture():
    rng = np.random.default_rng(0)
    mixture = Mixture.of(torch.tensor(rng.normal(size=(80, 3))), torch.tensor(rng.dirichlet(np.ones(4), size=80)))
    # Far out too, where densities underflow.
    z = rng.normal(size=(50, 3)) * np.linspace(1, 60, 50)[:, None]
    parts = zip(mixture.share.numpy(), mixture.mean.numpy(), mixture.covariance.numpy(), strict=True)
    expected = -logsumexp([np.log(p) + multivariate_normal(m, c).logpdf(z) for p, m, c in parts], axis=0)
    np.testing.assert_allclose(mixture.energy(torch.tensor(z)), expected, rtol=1e-9)


def test_the_code_is_followed_by_relative_distance_and_cosine():
    torch.manual_seed(0)
    network = Compression(5, 2, 3).eval()
    x = torch.randn(7, 5)
    z, membership, rebuilt = (t.detach().numpy() for t in network(x))
    np.testing.assert_allclose(z[:, :2], network.encoder(x).detach(), rtol=1e-6)
    rows = x.numpy()
    np.testing.assert_allclose(
        z[:, 2], np.linalg.norm(rows - rebuilt, axis=1) / np.linalg.norm(rows, axis=1), rtol=1e-5
    )
    cosine = (rows * rebuilt).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(rebuilt, axis=1)
    np.testing.assert_allclose(z[:, 3], cosine, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(membership.sum(axis=1), 1, rtol=1e-6)


def test_the_loss_is_error_plus_energy_plus_inverse_variances():
    torch.manual_seed(0)
    network, x = Compression(5, 1, 2).eval(), torch.randn(40, 5)
    z, membership, rebuilt = (t.detach().double().numpy() for t in network(x))
    energy, inverse = [], 0.0
    means = (membership.T @ z) / membership.sum(axis=0)[:, None]
    for k in range(2):
        apart = z - means[k]
        covariance = (membership[:, k, None] * apart).T @ apart / membership[:, k].sum() + 1e-6 * np.eye(3)
        inverse += (1 / np.diag(covariance)).sum()
        energy.append(np.log(membership[:, k].mean()) + multivariate_normal(means[k], covariance).logpdf(z))
    expected = ((x.numpy() - rebuilt) ** 2).mean() - 0.3 * logsumexp(energy, axis=0).mean() + 0.07 * inverse
    found = DAGMM(energy_weight=0.3, covariance_weight=0.07, latent=1, components=2)._loss(network, x)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_training_finds_what_an_untrained_network_does_not():
    """ADBench's figures are of an untrained one."""
    inside, outside = drawn()
    test_inside, _ = drawn(seed=1)
    test, truth = given(features=np.concatenate([test_inside, outside])), [0] * len(test_inside) + [1] * len(outside)
    auroc = {}
    for epochs, rate in ((30, 5e-3), (1, 1e-12)):
        method = DAGMM(epochs=epochs, learning_rate=rate, batch=100).fit(given(features=inside), None)
        auroc[epochs] = roc_auc_score(truth, method.score(test).numpy())
    assert auroc[30] > 0.95
    assert auroc[1] < auroc[30] - 0.02


def test_memberships_are_learnt_with_half_of_ten_units_dropped():
    torch.manual_seed(0)
    network, units = Compression(5, 1, 3), []
    network.estimator[-2].register_forward_hook(lambda module, given, found: units.append(given[0]))
    x = torch.randn(500, 5)
    for mode in (True, False):
        network.train(mode)(x)
    dropped, whole = units
    assert dropped.shape == (500, 10)
    assert 0.45 < float((dropped == 0).float().mean()) < 0.55
    torch.testing.assert_close(dropped[dropped != 0], 2 * whole[dropped != 0])
