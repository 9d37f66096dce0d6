from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.shaping import AdaSCALE

from .problems import Problem, assert_equal, changed, f, given, problem, scores


def with_moved(kind: str) -> Problem:
    """A problem whose features have moved, each split by noise of its own, large activations below zero too."""
    data, generator = problem(kind, n=200), torch.Generator().manual_seed(5)

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
def test_equals_the_formula_sample_by_sample(kind, low, high, k1, weight, variant):
    data = with_moved(kind)
    method = AdaSCALE(variant, (low, high), k1=k1, k2=10.0, weight=weight)
    logits = by_hand(data, variant, low, high, {20.0: 4, 5.0: 1, 25.0: 6}[k1], 2, weight)
    assert_equal(scores(method, data), -logsumexp(logits, axis=1))
    x = FeatureSet({name: data.test.columns[name] for name in (Field.FEATURES, Field.PERTURBED)})
    np.testing.assert_allclose(method.class_scores(x), 1 - softmax(logits, axis=1), rtol=1e-3, atol=1e-5)


def test_a_sample_is_among_those_with_a_shift_at_most_as_large_as_its_own():
    """Of four samples seen, the one that moved furthest gets p_min itself."""
    data = with_moved("rectified")
    seen = data.val[:4]
    furthest = max(range(4), key=lambda i: shift_of(f(seen)[i], g(seen)[i], 1, 1, 10.0))
    both, least = (AdaSCALE(percentiles=p).fit(seen, data.head).score(seen)[furthest] for p in ((30, 90), (30, 30)))
    assert both == least


def test_a_percentile_that_keeps_nothing_is_refused():
    data = with_moved("rectified")
    with pytest.raises(MethodError, match="at least one of 24"):
        scores(AdaSCALE(percentiles=(60, 99)), data)


def test_few_features_still_measure_a_shift():
    data = with_moved("rectified")
    assert not np.allclose(scores(AdaSCALE(k2=0.5, weight=10), data), scores(AdaSCALE(k2=0.5, weight=0), data))


def test_a_sample_without_activations_scores_the_energy_of_the_bias():
    data = with_moved("rectified")
    zeros = given(features=torch.zeros(2, 24), perturbed=torch.zeros(2, 24))
    found = AdaSCALE().fit(data.val, data.head).score(zeros)
    torch.testing.assert_close(found, (-torch.logsumexp(data.head.bias, dim=0)).expand(2))
