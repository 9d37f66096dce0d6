"""Principal subspaces, against scikit-learn and singular value decompositions."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler, normalize

from openbench.core.features import FeatureSet, Head
from openbench.errors import MethodError
from openbench.methods.subspaces import KPCA, NECO, PNML, Residual, ViM

from .problems import Problem, assert_equal, changed, equals, f, given, kinds_but, problem, scores, unit, z


def outside(data: Problem, x: FeatureSet, dim: int) -> Callable[[np.ndarray], np.ndarray]:
    """The length of the part of features outside the `dim` first directions of a singular value decomposition."""
    u = np.linalg.lstsq(data.weight, -data.bias, rcond=1e-5)[0]
    principal = np.linalg.svd(f(x) - u)[2][:dim].T
    return lambda features: np.linalg.norm((features - u) - (features - u) @ principal @ principal.T, axis=1)


def centred(kind: str, n: int) -> Problem:
    """Centred rows lower the rank of W by one; a cut-off near float32's ε would invert what rounding left."""
    if kind != "centred":
        return problem(kind, n)
    data = problem(n=n)
    head = Head(data.head.weight - data.head.weight.mean(dim=0), data.head.bias)
    return Problem(*(changed(x, logits=head(x.features)) for x in (data.train, data.val, data.test)), head)


@equals(ViM(1), ViM(12), ViM(19), kinds=["centred", *kinds_but("dead")], make=centred)
def test_vim_equals_a_singular_value_decomposition(data, method):
    length = outside(data, data.train, method.dim)
    alpha = z(data.train).max(axis=1).mean() / length(f(data.train)).mean()
    return alpha * length(f(data.test)) - logsumexp(z(data.test), axis=1)


@pytest.mark.parametrize(("d", "dim"), [(24, 12), (300, 256)])
def test_vim_auto_leaves_residual_directions_in_small_networks(d, dim):
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(4, d, generator=generator), torch.zeros(4))
    features = torch.randn(400, d, generator=generator)
    split = given(features=features, logits=head(features))
    auto, fixed = ViM().fit(split, head), ViM(dim).fit(split, head)
    assert auto.residual_.shape == (d, d - dim)
    assert torch.equal(auto.score(split), fixed.score(split))
    assert auto.params() == {"dim": "auto"}


def test_vim_features_of_lower_rank_than_the_subspace_are_an_error():
    """What is left is the rounding of float32: a score of noise."""
    data = problem()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(600, 5, generator=generator) @ torch.randn(5, 24, generator=generator)
    head = Head(data.head.weight, torch.zeros(6))  # without a bias the origin lies in the subspace
    flat = given(features=features, logits=head(features))
    assert bool(ViM(4).fit(flat, head).score(flat).isfinite().all())
    for dim in (5, 12):
        with pytest.raises(MethodError, match="lower dim"):
            ViM(dim).fit(flat, head)


@equals(Residual(1), Residual(8), Residual(16))
def test_residual_equals_what_a_singular_value_decomposition_leaves(data, method):
    return outside(data, data.val, method.dim)(f(data.test))


@pytest.mark.parametrize(("d", "kept"), [(24, 12), (1100, 588)])
def test_residual_auto_leaves_residual_directions(d, kept):
    generator = torch.Generator().manual_seed(0)
    data = problem()
    head = type(data.head)(torch.randn(3, d, generator=generator), torch.zeros(3))
    split = given(features=torch.randn(50, d, generator=generator))
    assert Residual().fit(split, head).residual_.shape == (d, kept)


@equals(NECO(1), NECO(15, False), *(NECO(8, *how) for how in itertools.product((True, False), repeat=2)), rtol=1e-4)
def test_neco_equals_scaler_and_pca_of_sklearn(data, method):
    """Share of the length inside the subspace: scaler and PCA as the authors' code uses them."""
    train, test = f(data.train), f(data.test)
    if method.standardise:
        scaler = StandardScaler().fit(train)
        train, test = scaler.transform(train), scaler.transform(test)
    inside = PCA(method.dim, svd_solver="full").fit(train).transform(test)
    share = np.linalg.norm(inside, axis=1) / np.linalg.norm(test, axis=1)
    return -share * z(data.test).max(axis=1) if method.max_logit else -share


@pytest.mark.parametrize("kind", ["rectified", "signed", "dead"])
def test_neco_auto_takes_the_fewest_directions_that_hold_nine_tenths(kind):
    data = problem(kind)
    train = StandardScaler().fit_transform(f(data.train))
    held = np.cumsum(PCA().fit(train).explained_variance_ratio_)
    dim = int(np.argmax(held >= 0.9)) + 1
    assert 1 < dim < 23
    assert_equal(scores(NECO(), data), scores(NECO(dim), data))


def test_neco_constant_features_count_for_nothing_whatever_a_sample_has_there():
    data = problem("dead")
    fitted = NECO().fit(data.train, None)
    moved = data.test.features.clone()
    moved[:, :4] += 5
    before, after = (fitted.score(given(features=x, logits=data.test.logits)) for x in (data.test.features, moved))
    assert torch.equal(before, after)


@pytest.mark.parametrize("standardise", [True, False])
def test_neco_a_feature_without_length_scores_nothing(standardise):
    """The mean of features with exact sums, or the zero vector: 0/0 otherwise."""
    features = torch.tensor([[1.0, 2.0, 4.0], [3.0, 2.5, 0.0], [2.0, 3.0, 2.0], [2.0, 2.5, 2.0]])
    x = given(features=features, logits=torch.ones(4, 2))
    point = features.mean(dim=0, keepdim=True) if standardise else torch.zeros(1, 3)
    fitted = NECO(1, standardise).fit(x, None)
    found = fitted.score(given(features=point, logits=torch.ones(1, 2)))
    assert bool(found.isfinite().all())
    assert not standardise or found.item() == 0


def errors(train: np.ndarray, test: np.ndarray, variance: float) -> np.ndarray:
    """Reconstruction errors by sklearn, which keeps as many components as hold the share of the variance."""
    pca = PCA(variance, svd_solver="full").fit(train)
    return np.linalg.norm(test - pca.inverse_transform(pca.transform(test)), axis=1)


@equals(KPCA("cosine", 0.1), KPCA("cosine", 0.7), KPCA("cosine", 0.85), rtol=1e-4)
def test_kpca_cosine_kernel_equals_sklearns_reconstruction_of_unit_features(data, method):
    return errors(unit(f(data.train)), unit(f(data.test)), method.variance)


@equals(KPCA(variance=0.8, gamma=1.5, components=100), rtol=1e-3)
def test_kpca_gaussian_kernel_equals_sklearns_reconstruction_of_random_features(data, method):
    frequencies, phases = method.frequencies_.double().numpy(), method.phases_.double().numpy()
    train, test = (np.cos(unit(f(x)) @ frequencies.T + phases) / np.sqrt(50) for x in (data.train, data.test))
    return errors(train, test, 0.8)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_kpca_products_of_random_features_approximate_the_kernel(gamma):
    data = problem("signed", n=60)
    fitted = KPCA(gamma=gamma, components=1000, variance=0.5).fit(data.train, None)
    mapped = fitted._mapped(data.test.features)
    rows = unit(f(data.test))
    kernel = np.exp(-gamma * ((rows[:, None] - rows) ** 2).sum(axis=2))
    np.testing.assert_allclose(mapped @ mapped.T, kernel, atol=0.15)


@equals(PNML(), kinds=kinds_but("hot"), rtol=2e-4)
def test_pnml_equals_the_formula(data, method):
    """The formula, term by term, with the pseudo-inverse of the features themselves."""
    train, test = normalize(f(data.train)), normalize(f(data.test))
    p = softmax(test @ data.weight.T + data.bias, axis=1)
    inverse = np.linalg.pinv(train, rcond=1e-6)
    g = np.square(test @ inverse).sum(axis=1, keepdims=True)
    kappa = g / (1 + g)
    return np.log((p / (p + (1 - p) * p**kappa)).sum(axis=1)) / np.log(p.shape[1])


def test_pnml_regrets_of_sure_predictions_keep_their_order():
    """Two classes with logits ±a, two orthogonal training features: g = 1. The regret falls long after p rounds to 1.

    κ = 1/2, so the other class' term is (e^{−2a})^{1/2}, and the top's misses e^{−2a}.
    """
    train = given(features=torch.eye(2))
    x = given(features=torch.tensor([[2.0, 0.0]]))
    heads = [Head(torch.tensor([[a, 0.0], [-a, 0.0]]), torch.zeros(2)) for a in (20.0, 40.0, 60.0)]
    found = [float(PNML().fit(train, head).score(x)[0]) for head in heads]
    expected = [np.log1p(np.exp(-a) - np.exp(-2 * a)) / np.log(2) for a in (20, 40, 60)]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
