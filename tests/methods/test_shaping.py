"""Reshaped features, against loops over samples."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import rankdata
from scipy.stats.mstats import mquantiles

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.shaping import ASH, DICE, LTS, RAS, SCALE, VRA, AdaSCALE, LINe, OptFS, ReAct

from .problems import (
    Problem,
    assert_equal,
    changed,
    equals,
    f,
    given,
    kinds_but,
    problem,
    scores,
    y,
    z,
)


def energy(data: Problem, features: np.ndarray) -> np.ndarray:
    return -logsumexp(features @ data.weight.T + data.bias, axis=1)


def quantiles(x: FeatureSet, *percentiles: float) -> np.ndarray:
    # alphap = betap = 1 is the definition with linear interpolation between order statistics.
    return mquantiles(f(x).ravel(), np.array(percentiles) / 100, alphap=1, betap=1)


@equals(*map(ReAct, (0, 85, 90, 99, 100)))
def test_react_equals_clipping_by_hand(data, method):
    [threshold] = quantiles(data.val, method.percentile)
    return energy(data, np.where(f(data.test) > threshold, threshold, f(data.test)))


@equals(*(VRA(high, low, below) for high, low in [(90, 10), (99, 1), (50, 50)] for below in ("lift", "zero")))
def test_vra_equals_clipping_by_hand(data, method):
    t_low, t_high = quantiles(data.val, method.low, method.high)
    features = f(data.test)
    clipped = np.where(features > t_high, t_high, features)
    clipped[features < t_low] = t_low if method.below == "lift" else 0
    return energy(data, clipped)


def one_by_one(features: np.ndarray, percentile: float, variant: str) -> np.ndarray:
    shaped = np.zeros_like(features)
    d = features.shape[1]
    removed = int(np.round(d * percentile / 100))  # halves to even, as Python and NumPy round
    for i, row in enumerate(features):
        kept = np.argsort(row)[removed:]
        factor = np.exp(row.sum() / row[kept].sum()) if variant in ("s", "scale") else 1
        if variant == "scale":
            shaped[i] = factor * row
        else:
            shaped[i, kept] = row.sum() / len(kept) if variant == "b" else factor * row[kept]
    return shaped


@pytest.mark.parametrize("variant", ["b", "p", "s"])
@pytest.mark.parametrize("percentile", [0, 65, 90])
@pytest.mark.parametrize("kind", ["rectified", "signed", "hot", "two_classes", "many_classes"])
def test_ash_equals_shaping_sample_by_sample(kind, percentile, variant):
    data = problem(kind, n=120)
    expected = energy(data, one_by_one(f(data.test), percentile, variant))
    ordered = np.sort(f(data.test), axis=1)
    cut = int(np.round(24 * percentile / 100))
    # Which of equal entries (zeros) B fills is anybody's choice; S divides sums that nearly cancel if signed.
    clear = ordered[:, cut] > (ordered[:, cut - 1] if cut else -np.inf)
    found = scores(ASH(percentile, variant), data)
    assert clear.mean() > 0.9
    assert_equal(found[clear], expected[clear], rtol=1e-4 if (kind, variant) == ("signed", "s") else 1e-5)


@pytest.mark.parametrize("method", [ASH(90, "b"), ASH(90, "p"), ASH(90, "s"), SCALE()])
def test_ash_a_sample_without_activations_scores_the_energy_of_the_bias(method):
    data = problem()
    found = method.fit(None, data.head).score(given(features=torch.zeros(2, 24)))
    torch.testing.assert_close(found, (-torch.logsumexp(data.head.bias, dim=0)).expand(2))


def test_ash_halves_of_the_kept_count_round_to_even():
    """d = 5 at 50 %: 2.5 removed rounds to 2, so 3 of 5 stay."""
    shaped = ASH(50, "p").reshape(torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0]]))
    assert shaped.tolist() == [[5.0, 0.0, 4.0, 0.0, 3.0]]


@equals(*map(SCALE, (0, 65, 85, 90, 96)), kinds=kinds_but("signed"))  # 96: one of 24 is kept
def test_scale_equals_scaling_sample_by_sample(data, method):
    return energy(data, one_by_one(f(data.test), method.percentile, "scale"))


@pytest.mark.parametrize("shift", [-10.0, -3.0, -1.0, 0.0])
@pytest.mark.parametrize("percentile", [65, 85, 95])
def test_scale_signed_features_whose_kept_part_cancels_have_finite_scores(shift, percentile):
    generator = torch.Generator().manual_seed(0)
    features = shift + torch.randn(2000, 64, generator=generator)
    head = Head(torch.randn(5, 64, generator=generator), torch.zeros(5))
    x = given(features=features)
    for method in (SCALE(percentile), ASH(variant="s", percentile=percentile)):
        assert method.fit(None, head).score(x).isfinite().all()


@equals(LTS(0), LTS(65), LTS(95))
def test_lts_equals_scaling_sample_by_sample(data, method):
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        active = np.sort(np.maximum(row, 0))
        factor = active.sum() / active[int(np.round(24 * method.percentile / 100)) :].sum()
        result.append(-logsumexp(logits * factor**2))
    return result


def test_lts_a_sample_without_activations_keeps_its_logits():
    logits = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    found = LTS().score(given(features=-torch.ones(2, 24), logits=logits))
    torch.testing.assert_close(found, -torch.logsumexp(logits, dim=1))


def with_moved(kind: str = "rectified", n: int = 100) -> Problem:
    """A problem whose features have moved, each split by noise of its own, large activations below zero too."""
    data, generator = problem(kind, n), torch.Generator().manual_seed(5)

    def moved(x: FeatureSet) -> FeatureSet:
        shift = 1.5 * torch.randn(x.features.shape, generator=generator)
        return changed(x, perturbed=x.features + shift)

    return replace(data, val=moved(data.val), test=moved(data.test))


def g(x: FeatureSet) -> np.ndarray:
    return x.perturbed.double().numpy()


def shift_of(row, moved, k1, k2, weight):
    """Q' of one sample: sort, look up, add."""
    order = np.argsort(-row, kind="stable")
    correction = sum(max(moved[i], 0) for i in order[:k1])
    return correction + weight * sum(abs(row[i] - moved[i]) for i in order[:k2])


def by_hand(data: Problem, variant: str, low: float, high: float, k1: int, k2: int, weight: float) -> np.ndarray:
    """Logits (n, c) one sample at a time, in float64."""
    seen = [shift_of(row, moved, k1, k2, weight) for row, moved in zip(f(data.val), g(data.val), strict=True)]
    found = []
    for row, moved in zip(f(data.test), g(data.test), strict=True):
        share = np.mean(np.array(seen) <= shift_of(row, moved, k1, k2, weight))
        kept = 24 - int(np.round(24 * (low + (1 - share) * (high - low)) / 100))
        positive = np.sort(row.clip(min=0))[::-1]
        ratio = positive.sum() / positive[:kept].sum()
        scaled = row * np.exp(ratio) if variant == "a" else row
        logits = data.weight @ scaled + data.bias
        found.append(logits if variant == "a" else logits * ratio**2)
    return np.array(found)


# No percentile times 24 ends in exactly one half, where float64 would decide which way it is rounded.
@pytest.mark.parametrize("variant", ["a", "l"])
@pytest.mark.parametrize(
    ("low", "high", "k1", "weight"), [(60.1, 90.3, 20.0, 10.0), (85, 85, 5.0, 0.0), (1.3, 94.7, 25.0, 1)]
)
@pytest.mark.parametrize("kind", ["rectified", "signed", "hot", "two_classes", "many_classes"])
def test_adascale_equals_the_formula_sample_by_sample(kind, low, high, k1, weight, variant):
    data = with_moved(kind)
    method = AdaSCALE(variant, (low, high), k1=k1, k2=10.0, weight=weight)
    logits = by_hand(data, variant, low, high, {20.0: 4, 5.0: 1, 25.0: 6}[k1], 2, weight)
    assert_equal(scores(method, data), -logsumexp(logits, axis=1))
    x = FeatureSet({name: data.test.columns[name] for name in (Field.FEATURES, Field.PERTURBED)})
    np.testing.assert_allclose(method.class_scores(x), 1 - softmax(logits, axis=1), rtol=1e-3, atol=1e-5)


def test_adascale_a_sample_is_among_those_with_a_shift_at_most_as_large_as_its_own():
    """Of four samples seen, the one that moved furthest gets p_min itself."""
    data = with_moved()
    seen = data.val[:4]
    furthest = max(range(4), key=lambda i: shift_of(f(seen)[i], g(seen)[i], 1, 1, 10.0))
    both, least = (AdaSCALE(percentiles=p).fit(seen, data.head).score(seen)[furthest] for p in ((30, 90), (30, 30)))
    assert both == least


def test_adascale_a_percentile_that_keeps_nothing_is_refused():
    data = with_moved()
    with pytest.raises(MethodError, match="at least one of 24"):
        scores(AdaSCALE(percentiles=(60, 99)), data)


def test_adascale_few_features_still_measure_a_shift():
    data = with_moved()
    assert not np.allclose(scores(AdaSCALE(k2=0.5, weight=10), data), scores(AdaSCALE(k2=0.5, weight=0), data))


def test_adascale_a_sample_without_activations_scores_the_energy_of_the_bias():
    data = with_moved()
    zeros = given(features=torch.zeros(2, 24), perturbed=torch.zeros(2, 24))
    found = AdaSCALE().fit(data.val, data.head).score(zeros)
    torch.testing.assert_close(found, (-torch.logsumexp(data.head.bias, dim=0)).expand(2))


@equals(RAS())
def test_ras_equals_the_profile_read_by_rank(data, method):
    """Ranks as scipy gives them, ties in the order of the row."""
    profile = np.mean([sorted(row) for row in f(data.train)], axis=0)
    return energy(data, profile[rankdata(f(data.test), method="ordinal", axis=1).astype(int) - 1])


def test_ras_among_equal_features_the_earlier_takes_the_smaller_value():
    train = given(features=torch.tensor([[4.0, 0.0, 2.0], [2.0, 4.0, 0.0]]))
    head = Head(torch.eye(3), torch.zeros(3))
    found = RAS().fit(train, head).reshape(torch.tensor([[1.0, 0.0, 0.0], [5.0, 5.0, 5.0]]))
    assert found.tolist() == [[4.0, 0.0, 2.0], [0.0, 2.0, 4.0]]


@equals(DICE(10), DICE(70), DICE(90), n=100)
def test_dice_equals_sums_over_the_contributions_that_stay(data, method):
    """The B × C × D form of the authors: each sample's contributions, masked, summed over dimensions."""
    mean = f(data.train).mean(axis=0)
    contribution = data.weight * mean
    # alphap = betap = 1 is the definition with linear interpolation between order statistics.
    mask = contribution > mquantiles(contribution.ravel(), [method.percentile / 100], alphap=1, betap=1)
    logits = np.stack([(data.weight * row * mask).sum(axis=1) + data.bias for row in f(data.test)])
    return -logsumexp(logits, axis=1)


def contributions(data) -> np.ndarray:
    """Mean over a class' samples of feature times the gradient, by autograd, of the true class' logit (C, d)."""
    features = torch.tensor(f(data.train), requires_grad=True)
    logits = features @ torch.tensor(data.weight).T + torch.tensor(data.bias)
    (gradient,) = torch.autograd.grad(logits[torch.arange(len(logits)), data.train.labels].sum(), features)
    taylor, labels = (features * gradient).detach().numpy(), y(data.train)
    average = f(data.train).mean(axis=0)
    classes = range(len(data.bias))
    return np.stack([taylor[labels == c].mean(axis=0) if c in labels else average * data.weight[c] for c in classes])


@equals(LINe(10, 10, 0.8), LINe(90, 10, 1.0), LINe(25, 60, 2.5), n=100, many=30, rtol=1e-4)
def test_line_equals_masks_sample_by_sample(data, method):
    importance, found = contributions(data), []
    for row in f(data.test).clip(max=method.clip):
        own = importance[(data.weight @ row + data.bias).argmax()]
        strength = np.abs(own) * data.weight
        weight = np.where(strength > np.percentile(strength, method.weight_percentile), data.weight, 0)
        kept = np.where(own > np.percentile(own, method.activation_percentile), row, 0)
        found.append(-logsumexp(weight @ kept + data.bias))
    return found


@equals(*(OptFS(intervals, form) for intervals in (1, 100) for form in ("max_logit", "energy")), rtol=1e-4)
def test_optfs_equals_one_mask_per_interval(data, method):
    train, test = f(data.train), f(data.test)
    low, high = np.quantile(train, 1e-3), np.quantile(train, 1 - 1e-3)
    edges = np.linspace(low, high, method.intervals + 1)
    gain = data.weight[z(data.train).argmax(axis=1)] * train
    theta = np.array([gain[(train >= a) & (train < b)].sum() / len(train) for a, b in itertools.pairwise(edges)])
    theta = 1000 * theta / np.linalg.norm(theta)
    result = np.zeros_like(test)
    for a, b, value in zip(edges[:-1], edges[1:], theta, strict=True):
        result += np.where((test >= a) & (test < b), value * test, 0)
    by_logit = -(data.weight[z(data.test).argmax(axis=1)] * result).sum(axis=1)
    return energy(data, result) if method.form == "energy" else by_logit


@pytest.mark.parametrize("n", [3, 50, 5000])
def test_optfs_quantiles_of_streamed_activations_are_numpys(n):
    features, head = torch.randn(n, 24, generator=torch.Generator().manual_seed(n)), problem().head
    fitted = OptFS().fit(given(features=features, logits=head(features)), head)
    ends = np.quantile(features.double().numpy(), [1e-3, 1 - 1e-3])
    np.testing.assert_allclose(fitted.bounds_[[0, -1]], ends, rtol=1e-9)


def test_optfs_a_bound_belongs_to_the_interval_above():
    data = problem()
    fitted = OptFS(2).fit(data.train, data.head)
    fitted.bounds_ = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    fitted.theta_ = torch.tensor([0.0, 10.0, 1000.0, 0.0])
    rows = given(features=torch.diag(torch.tensor([1.0, 2.0, 3.0])), logits=torch.eye(6)[:3])
    fitted.head_ = Head(torch.ones(6, 3), torch.zeros(6))
    assert fitted.score(rows).tolist() == [-10.0, -2000.0, 0.0]


def test_optfs_a_head_of_zeros_gives_no_gain():
    data = problem()
    fitted = OptFS().fit(data.train, Head(torch.zeros(6, 24), data.head.bias))
    assert not fitted.theta_.any()
    assert not fitted.score(data.test).any()


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_optfs_constant_activations_are_refused(value):
    data = problem()
    rows = changed(data.train, features=torch.full((600, 24), value))
    with pytest.raises(MethodError, match=r"OptFS\.fit: the \.001 and \.999 quantiles"):
        OptFS().fit(rows, data.head)
