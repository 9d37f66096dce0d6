"""Intervals of one AUROC, and of a mean over OOD sets that share one ID set, against every resample."""

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from openbench.metrics import intervals
from openbench.metrics.curve import CURVE_METRICS, PooledCurve
from openbench.metrics.intervals import bootstrap, delong, delong_variance, group_delong_variance

from . import metric_oracles as oracle


def placement_variance(a, b):
    """DeLong's variance from the full matrix of comparisons."""
    wins = (b[:, None] > a) + 0.5 * (b[:, None] == a)
    return wins.mean(axis=0).var(ddof=1) / a.size + wins.mean(axis=1).var(ddof=1) / b.size


@pytest.mark.parametrize("decimals", [None, 1, 0])
@pytest.mark.parametrize("seed", range(3))
def test_delong_variance_equals_the_matrix_of_comparisons(seed, decimals):
    a, b = oracle.random_pair(seed, 70, 45, decimals)
    assert delong_variance(PooledCurve.of(a, b)) == pytest.approx(placement_variance(a, b), rel=1e-10)


@pytest.mark.parametrize("decimals", [None, 1])
def test_group_variance_equals_that_of_the_averaged_comparisons(decimals):
    a, b = oracle.random_pair(0, 50, 40, decimals)
    _, c = oracle.random_pair(1, 50, 90, decimals)
    wins = [(x[:, None] > a) + 0.5 * (x[:, None] == a) for x in (b, c)]
    on_id = np.mean([w.mean(axis=0) for w in wins], axis=0).var(ddof=1) / a.size
    from_ood = sum(w.mean(axis=1).var(ddof=1) / len(w) for w in wins) / 4
    curves = [PooledCurve.of(a, x) for x in (b, c)]
    assert group_delong_variance(curves) == pytest.approx(on_id + from_ood, rel=1e-10)


def test_delong_interval_covers_the_true_auroc_at_its_level():
    rng, truth, hits = np.random.default_rng(0), norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(2000):
        low, high = delong(PooledCurve.of(rng.normal(size=150), rng.normal(size=100) + 1))
        hits += low <= truth <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)


def test_intervals_stay_within_the_unit_interval():
    assert delong(PooledCurve.of([0.0, 1.0], [2.0, 3.0])) == (1.0, 1.0)
    low, high = delong(PooledCurve.of([0.0, 1.0, 5.0], [2.0, 3.0, 9.0]))
    assert 0 <= low < high <= 1


def test_bootstrap_interval_of_auroc_agrees_with_delong():
    curve = PooledCurve.of(*oracle.random_pair(1, 400, 300))
    drawn = bootstrap([curve], ("auroc",), replicates=2000, seed=3)["auroc"]
    assert drawn == pytest.approx(delong(curve), abs=0.006)


KEYS = ("fpr95", "fpr95_id_positive")
RESAMPLED = (*KEYS, "aupr_in")
GROUPS = {
    "one set": ([0.0, 1.0, 2.0], [[1.5, 3.0]]),
    "one set with ties": ([0.0, 1.0, 1.0], [[1.0, 2.0, 2.0]]),
    "one each": ([0.0], [[0.0]]),
    "few OOD": ([0.0, 1.0, 3.0, 4.0], [[2.0]]),
    "apart": ([0.0, 1.0, 2.0], [[1.5, 3.0], [0.5, 0.7]]),
    "tied": ([0.0, 1.0, 1.0], [[1.0, 2.0], [0.0, 1.0]]),
    "three sets": ([0.0, 2.0], [[1.0], [3.0, -1.0], [2.0]]),
}


def law(key, ids, sets):
    """Probability of every mean over all resamples, in each of which all sets meet the same ID scores."""
    found = Counter()
    for a in product(ids, repeat=len(ids)):
        for drawn in product(*(product(b, repeat=len(b)) for b in sets)):
            found[round(np.mean([CURVE_METRICS[key](PooledCurve.of(a, b)) for b in drawn]), 9)] += 1
    total = sum(found.values())
    return {value: count / total for value, count in found.items()}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("group", GROUPS)
def test_drawn_means_follow_the_law_of_all_joint_resamples(key, group):
    ids, sets = GROUPS[group]
    draws, expected = 20_000, law(key, ids, sets)
    curves = [PooledCurve.of(ids, b) for b in sets]
    drawn = intervals._DRAWN[key](curves, np.random.default_rng(0), draws)
    counts, values = Counter(np.round(drawn, 9).tolist()), sorted(expected)
    assert set(counts) <= set(expected)
    result = chisquare([counts[v] for v in values], [draws * expected[v] for v in values])
    assert len(values) == 1 or result.pvalue > 1e-3


@cache
def resampled():
    """Scores of a group, and the mean of each metric over its sets in many resamples."""
    rng = np.random.default_rng(1)
    a, sets = rng.normal(size=300), [rng.normal(1.0, 1, 200), rng.normal(1.2, 1, 150), rng.normal(2.0, 1, 100)]
    means = {key: [] for key in RESAMPLED}
    for _ in range(700):
        ids = rng.choice(a, a.size)
        curves = [PooledCurve.of(ids, rng.choice(b, b.size)) for b in sets]
        for key, found in means.items():
            found.append(np.mean([CURVE_METRICS[key](curve) for curve in curves]))
    return a, sets, means


@pytest.mark.parametrize("key", RESAMPLED)
def test_intervals_of_a_group_are_those_of_resampling_the_scores_themselves(key):
    a, sets, means = resampled()
    got = bootstrap([PooledCurve.of(a, b) for b in sets], (key,), 700, 2)[key]
    assert got == pytest.approx(np.quantile(means[key], [0.025, 0.975]), abs=0.02)


def test_equal_seeds_give_equal_intervals_whichever_other_keys_are_asked_for():
    curves = [PooledCurve.of(*oracle.random_pair(0)), PooledCurve.of(oracle.random_pair(0)[0], [0.3, 1.0, 2.0])]
    one, two = (bootstrap(curves, keys, 50, 7) for keys in (("fpr95",), ("aupr_in", "fpr95")))
    assert one["fpr95"] == two["fpr95"]
    assert one["fpr95"] != bootstrap(curves, ("fpr95",), 50, 8)["fpr95"]
