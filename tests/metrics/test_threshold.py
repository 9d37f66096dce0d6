"""Areas over thresholds, and thresholds that groups share, against counting by hand and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.integrate import quad
from sklearn.metrics import f1_score

from openbench.metrics.curve import PooledCurve
from openbench.metrics.threshold import (
    Scale,
    balanced_threshold,
    choose_scale,
    f1_at,
    shared_thresholds,
    threshold_areas,
    threshold_stability,
    tnr_threshold,
)

from . import metric_oracles as oracle


def test_scores_outside_the_scale_are_integrated_over_the_unit_interval_only():
    a, b = np.array([-1.0, 0.5, 2.0]), np.array([0.25, 3.0])
    got = threshold_areas(a, b, Scale())
    assert got.aufpr == pytest.approx(quad(lambda t: np.mean(a > t), 0, 1, points=[0.5])[0], abs=1e-9)
    assert got.aufnr == pytest.approx(quad(lambda t: np.mean(b <= t), 0, 1, points=[0.25])[0], abs=1e-9)


def test_weight_moves_autc_between_its_parts():
    a, b = oracle.random_pair(1)
    scale = Scale.of([a, b])
    got = threshold_areas(a, b, scale, weight=0.8)
    assert got.autc == pytest.approx(0.8 * got.aufpr + 0.2 * got.aufnr)


def test_benchmark_scaling_gives_one_aufpr_for_all_ood_sets():
    a, b = oracle.random_pair(0)
    c = b * 5
    one, two = (threshold_areas(a, x, choose_scale("benchmark", (a, x), (a, b, c), ())).aufpr for x in (b, c))
    pairwise = [threshold_areas(a, x, choose_scale("pair", (a, x), (a, b, c), ())).aufpr for x in (b, c)]
    assert one == two
    assert abs(pairwise[0] - pairwise[1]) > 0.05


def test_exact_areas_are_sums_between_neighbouring_scores():
    a, b = oracle.random_pair(5, 300, 200)
    every = np.sort(np.concatenate([a, b]))
    errors = [np.mean(a > t) + np.mean(b <= t) for t in every[:-1]]
    expected = errors @ np.diff(every) / 2 / np.ptp(every)
    assert threshold_areas(a, b, Scale.of([a, b])).autc == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("decimals", [None, 0])
def test_balanced_threshold_is_as_balanced_as_any(seed, decimals):
    a, b = oracle.random_pair(seed, 37, 23, decimals)
    curve = PooledCurve.of(a, b)
    gaps = [abs(np.mean(a > t) - np.mean(b <= t)) for t in oracle.thresholds(a, b)]
    fpr, fnr = curve.rates(curve.at(balanced_threshold(curve)))
    assert abs(fpr - fnr) == pytest.approx(min(gaps), abs=1e-12)


@pytest.mark.parametrize("threshold", [-np.inf, -9.0, 0.0, 0.3, 0.31, 9.0, np.inf])
def test_error_rates_follow_their_definition_at_any_threshold(threshold):
    a, b = oracle.random_pair(0, 60, 40, 1)
    curve = PooledCurve.of(a, b)
    assert curve.rates(curve.at(threshold)) == pytest.approx(
        (np.mean(a > threshold), np.mean(b <= threshold)), abs=1e-15
    )


def test_tnr_threshold_is_the_smallest_that_accepts_enough():
    scores = np.sort(oracle.random_pair(0, 77)[0])
    t = tnr_threshold(scores)
    assert np.mean(scores <= t) >= 0.95
    assert np.mean(scores < t) < 0.95


def test_stability_is_in_units_of_the_id_score():
    a, _ = oracle.random_pair(0)
    once, scaled = threshold_stability([0.1, 0.5, 0.9], a), threshold_stability([1.0, 5.0, 9.0], 10 * a)
    assert once == pytest.approx(scaled)
    assert once.range == pytest.approx(0.8 / a.std())
    assert once.std == pytest.approx(np.sqrt(0.32 / 3) / a.std())


RNG = np.random.default_rng(0)
GROUPS = {
    "low": (RNG.normal(size=30), RNG.normal(2, 1, size=20)),
    "high": (RNG.normal(3, 1, size=25), RNG.normal(5, 1, size=35)),
    "wide": (RNG.normal(0, 2, size=22).round(1), RNG.normal(3, 2, size=15).round(1)),
}


def f1_by_sklearn(pair, threshold):
    truth = np.repeat([0, 1], [len(pair[0]), len(pair[1])])
    return f1_score(truth, np.concatenate(pair) >= threshold)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.lists(st.integers(-2, 16).map(lambda k: k / 2), min_size=1, max_size=6),
)
def test_f1_at_any_threshold_is_that_of_scikit_learn(inside, outside, thresholds):
    pair = (np.array(inside, float), np.array(outside, float))
    found = f1_at(PooledCurve.of(*pair), np.array(thresholds))
    assert found == pytest.approx([f1_by_sklearn(pair, t) for t in thresholds])


def test_each_group_has_its_own_best_and_finds_it_in_the_common_set():
    found = shared_thresholds(GROUPS)
    for name, pair in GROUPS.items():
        every = {t: f1_by_sklearn(pair, t) for t in np.concatenate(pair)}
        group = found.groups[name]
        assert group.own == pytest.approx(max(every.values()))
        assert every[group.threshold] == pytest.approx(group.own)
        assert group.threshold == PooledCurve.of(*pair).best_f1.threshold


def test_the_other_groups_thresholds_and_one_for_all_are_the_best_of_those():
    found = shared_thresholds(GROUPS)
    own = {name: group.threshold for name, group in found.groups.items()}
    for name, pair in GROUPS.items():
        others = {other: f1_by_sklearn(pair, t) for other, t in own.items() if other != name}
        best = max(others, key=others.__getitem__)
        assert found.groups[name].others == pytest.approx(others[best])
        assert found.groups[name].others_threshold == own[best]
        assert found.groups[name].others < found.groups[name].own
    means = {t: np.mean([f1_by_sklearn(pair, t) for pair in GROUPS.values()]) for t in own.values()}
    assert found.single_threshold == max(means, key=means.__getitem__)
    assert np.mean([group.single for group in found.groups.values()]) == pytest.approx(max(means.values()))


def test_spread_is_that_of_the_groups_own_thresholds():
    found = shared_thresholds(GROUPS)
    own = [group.threshold for group in found.groups.values()]
    mean = sum(own) / 3
    assert found.variance == pytest.approx(sum((t - mean) ** 2 for t in own) / 3)
    assert found.std == pytest.approx(found.variance**0.5)
    assert found.range == max(own) - min(own)
    assert found.relative_std == pytest.approx(found.std / np.mean([np.std(a) for a, _ in GROUPS.values()]))


def test_a_single_group_has_no_others():
    found = shared_thresholds({"low": GROUPS["low"]})
    assert (found.groups["low"].others, found.groups["low"].others_threshold) == (None, None)
    assert found.groups["low"].single == found.groups["low"].own


def test_constant_id_scores_have_no_unit():
    assert shared_thresholds({"a": (np.zeros(3), np.ones(3))}).relative_std is None
