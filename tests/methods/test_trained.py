"""Scores of networks that were trained for them, on outputs as such a network gives them."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logit, softmax
from scipy.stats import entropy

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.errors import NotApplicableError
from openbench.methods.gradients import GODIN
from openbench.methods.trained import CSI, MCD, MOS, SNGP, ConfBranch, Dropout, Ensemble, RotPred, WeightedEnergy

from .problems import assert_equal, logits_after_step

N, C = 40, 5


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def given(logits: torch.Tensor | None = None, **maps: torch.Tensor) -> FeatureSet:
    return FeatureSet({} if logits is None else {Field.LOGITS: logits}, maps)


def test_confidence_ranks_as_its_sigmoid_does_and_does_not_saturate() -> None:
    u = torch.cat([random(N, 1), torch.tensor([[60.0], [61.0]])])
    found = ConfBranch().score(given(confidence=u)).numpy()
    sigmoid = 1 / (1 + np.exp(-u[:, 0].double().numpy()))
    order = np.argsort(found, kind="stable")
    assert (np.diff(sigmoid[order]) <= 0).all()
    assert found[-1] < found[-2]


def test_weighted_energy_is_the_negative_of_what_the_network_weighs() -> None:
    energy = random(N, 1)
    np.testing.assert_array_equal(WeightedEnergy().score(given(weighted_energy=energy)), -energy[:, 0])


def test_mcd_is_the_l1_distance_of_probabilities() -> None:
    first, second = random(N, C), random(N, C, seed=1)
    expected = np.abs(softmax(first.numpy(), axis=1) - softmax(second.numpy(), axis=1)).sum(axis=1)
    np.testing.assert_allclose(MCD().score(given(first, second_head=second)), expected, rtol=1e-5, atol=1e-6)
    assert MCD().score(given(first, second_head=first)).abs().max() == 0


def test_rotpred_is_rotation_loss_less_divergence_from_uniform_in_bits() -> None:
    z, rotations = random(N, C), random(N, 16, seed=1)
    expected = []
    for row, turns in zip(z.double().numpy(), rotations.double().numpy().reshape(N, 4, 4), strict=True):
        divergence = entropy(np.full(C, 1 / C), softmax(row), base=2)
        loss = np.mean([-log_softmax(turns[r])[r] / np.log(2) for r in range(4)])
        expected.append(loss - divergence)
    np.testing.assert_allclose(RotPred().score(given(z, rotations=rotations)), expected, rtol=1e-5, atol=1e-5)


def test_csi_is_the_largest_probability_of_the_averaged_logits() -> None:
    z = random(N, C)
    p = softmax(z.double().numpy(), axis=1)
    np.testing.assert_allclose(CSI().score(given(turned=z)), -p.max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(CSI().class_scores(given(turned=z)), 1 - p, rtol=1e-4, atol=1e-6)


def test_mos_ranks_as_the_least_probability_of_others_does_and_does_not_saturate() -> None:
    log_p = torch.cat([-random(N, 3).abs(), torch.tensor([[-200.0, -1.0, -2.0], [-201.0, -1.0, -2.0]])])
    found = MOS().score(given(others=log_p)).numpy()
    paper = np.max(-np.exp(log_p.double().numpy()), axis=1)  # S_MOS, larger = more ID
    np.testing.assert_array_equal(np.argsort(found[:N]), np.argsort(-paper[:N]))
    assert found[-1] < found[-2]


@pytest.mark.parametrize("width", [1, C])
@pytest.mark.parametrize("factor", [0.0, np.pi / 8, 25.0])
def test_sngp_is_dempster_shafers_uncertainty_of_mean_field_logits(factor: float, width: int) -> None:
    z, variance = random(N, C), random(N, width, seed=1).abs()
    shrunk = z.double().numpy() / np.sqrt(1 + factor * variance.double().numpy())
    expected = C / (C + np.exp(shrunk).sum(axis=1))
    method = SNGP(factor)
    np.testing.assert_allclose(method.score(given(z, variance=variance)), expected, rtol=1e-5)
    np.testing.assert_allclose(method.class_scores(given(z, variance=variance)), 1 - softmax(shrunk, axis=1), atol=1e-6)


@pytest.mark.parametrize("form", ["logit", "softmax"])
@pytest.mark.parametrize("epsilon", [0.0, 0.0025, 0.02])
def test_godin_equals_the_recipe_through_a_real_network(network, form: str, epsilon: float) -> None:
    images = random(12, 3, 8, 8) / 3
    moved = logits_after_step(network, images, lambda z: -z.max(dim=1).values.sum(), epsilon)
    expected = -(moved if form == "logit" else softmax(moved, axis=1)).max(axis=1)
    method = GODIN(epsilon, form)
    found = method.score(given(network.outputs(images, method.request).logits))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_dropout_averages_the_probabilities_of_thinned_features() -> None:
    features, head = random(N, 30).relu(), Head(random(C, 30, seed=1) / 5, random(C, seed=2))
    method = Dropout(passes=7, probability=0.3).fit(None, head)
    assert method.masks_.shape == (7, 30)
    assert {round(v, 5) for v in method.masks_.unique().tolist()} == {0.0, round(1 / 0.7, 5)}
    weight, bias = head.weight.double().numpy(), head.bias.double().numpy()
    passes = [softmax((features.numpy() * m) @ weight.T + bias, axis=1) for m in method.masks_.double().numpy()]
    found = method.score(FeatureSet({Field.FEATURES: features}))
    np.testing.assert_allclose(found, -np.mean(passes, axis=0).max(axis=1), rtol=1e-5)


def test_a_network_without_the_output_is_named(network) -> None:
    with pytest.raises(NotApplicableError, match="has no layer 'confidence'"):
        network.outputs(torch.zeros(1, 3, 8, 8), ConfBranch().request)


def members(n: int = 50, m: int = 4, c: int = 6, scale: float = 2.0) -> FeatureSet:
    logits = scale * torch.randn(n, m, c, generator=torch.Generator().manual_seed(0))
    return FeatureSet({}, {"members": logits[..., None]})


@pytest.mark.parametrize("c", [2, 6, 1000])
def test_ensemble_equals_probabilities_averaged_sample_by_sample(c):
    x = members(c=c)
    p = softmax(x.map("members")[..., 0].double().numpy(), axis=2)
    mean = np.array([sample.mean(axis=0) for sample in p])
    assert_equal(Ensemble().score(x), -logit(mean.max(axis=1)))
    assert_equal(Ensemble("entropy").score(x), entropy(mean, axis=1))
    apart = [np.mean([entropy(one, mean[i]) for one in sample]) for i, sample in enumerate(p)]
    assert_equal(Ensemble("disagreement").score(x), apart)
    assert_equal(Ensemble().class_scores(x), 1 - mean)
