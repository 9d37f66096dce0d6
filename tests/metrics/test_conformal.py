"""Conformal p-values, also weighted ones, the metrics made of them, and the sizes from which an α can be reached."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import false_discovery_control, norm

from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.conformal.p_values import (
    benjamini_hochberg,
    conditional_size,
    conformal_auroc,
    conformal_fpr,
    conformal_fpr95,
    discoveries,
    marginal_size,
    p_values,
    weighted_p_values,
)
from openbench.metrics.curve import PooledCurve

from . import metric_oracles as oracle

INTEGERS = st.lists(st.integers(-3, 3), min_size=1, max_size=20).map(lambda xs: np.array(xs, dtype=float))


@given(INTEGERS, INTEGERS)
def test_ranks_count_calibration_scores_at_least_as_large(calibration, x):
    want = 1 + (calibration[None, :] >= x[:, None]).sum(axis=1)
    np.testing.assert_array_equal(p_values(calibration, x), want / (calibration.size + 1))


def test_every_rank_maps_to_its_own_entry_of_the_table():
    # In floating point, ⌈(n+1)·p⌉ misses one rank in five at this n.
    n = 1000
    table = correction_table(n, 0.1)
    between = np.arange(n, -1, -1) - 0.5
    np.testing.assert_array_equal(p_values(np.arange(n), between, table), table)


def test_marginal_p_values_are_super_uniform():
    rng, p = np.random.default_rng(0), []
    for _ in range(4000):
        p.append(p_values(rng.normal(size=19), rng.normal(size=1))[0])
    for level in (0.05, 0.1, 0.5):
        assert np.mean(np.array(p) <= level) == pytest.approx(level, abs=4 * np.sqrt(level / 4000))


@pytest.mark.parametrize("correction", ["monte_carlo", "equal_local_level", "dkwm"])
def test_corrected_p_values_are_super_uniform_given_the_calibration_set(correction):
    # P(h(p) ≤ t | calibration) is known in closed form for normal scores; it may exceed t for a share ≤ δ of sets.
    n, delta, sets = 200, 0.1, 2000
    rng, table, failed = np.random.default_rng(1), correction_table(n, delta, correction), 0
    for _ in range(sets):
        ordered = np.sort(rng.normal(size=n))
        # h(p) ≤ b_K exactly for x above the K-th largest calibration score.
        flagged = norm.sf(ordered[::-1])
        failed += bool(np.any(flagged > table[:-1]))
    assert failed / sets <= delta + 4 * np.sqrt(delta * (1 - delta) / sets)


def test_conformal_fpr_bounds_the_true_rate_at_every_threshold():
    n, delta, sets = 300, 0.1, 1000
    rng, table, failed = np.random.default_rng(2), correction_table(n, delta), 0
    grid = np.linspace(-4, 4, 400)
    for _ in range(sets):
        ids = np.sort(rng.normal(size=n))
        flagged = n - np.searchsorted(ids, grid, side="right")
        failed += bool(np.any(norm.sf(grid) > conformal_fpr(flagged, table)))
    assert failed / sets <= delta + 4 * np.sqrt(delta * (1 - delta) / sets)


def test_no_exceedance_does_not_mean_no_false_alarms():
    table = correction_table(50, 0.05)
    assert conformal_fpr(np.array([0, 50]), table) == pytest.approx([table[0], 1.0])
    assert table[0] > 1 / 51


@pytest.mark.parametrize("decimals", [None, 1])
def test_conformal_auroc_equals_the_area_under_corrected_points(decimals):
    a, b = oracle.random_pair(0, 60, 40, decimals)
    table = correction_table(60, 0.1)
    points = []
    for t in oracle.thresholds(a, b)[::-1]:
        points.append((table[np.sum(a > t)], np.mean(b > t)))
    x, y = np.array(points).T
    assert conformal_auroc(PooledCurve.of(a, b), table) == pytest.approx(np.trapezoid(y, x), abs=1e-12)


def test_conformal_fpr95_is_the_table_entry_of_the_classical_threshold():
    a, b = oracle.random_pair(3, 90, 70, 1)
    table = correction_table(90, 0.05)
    assert conformal_fpr95(PooledCurve.of(a, b), table) == table[round(oracle.fpr95(a, b) * 90)]
    # 15 of 22 ID scores are above all OOD; as floats, 15/22·22 is below 15.
    curve, table = PooledCurve.of(np.repeat([0.0, 2.0], [7, 15]), np.ones(10)), correction_table(22, 0.05)
    assert conformal_fpr95(curve, table) == table[15] > table[14]


def test_benjamini_hochberg_equals_scipy():
    for seed in range(20):
        p = np.random.default_rng(seed).beta(0.5, 1, 50).round(2)
        np.testing.assert_array_equal(benjamini_hochberg(p, 0.2), false_discovery_control(p) <= 0.2 + 1e-12)


def test_benjamini_hochberg_controls_the_false_discovery_rate_of_conformal_p_values():
    rng, proportions = np.random.default_rng(3), []
    for _ in range(600):
        p = p_values(rng.normal(size=400), np.concatenate([rng.normal(size=80), rng.normal(3, 1, 20)]))
        flagged = benjamini_hochberg(p, 0.2)
        proportions.append(flagged[:80].sum() / max(1, flagged.sum()))
    assert np.mean(proportions) <= 0.2 + 4 * np.std(proportions) / np.sqrt(600)
    assert np.mean(proportions) > 0.1  # π₀·q = 0.16: the procedure is not idle


@given(INTEGERS, INTEGERS, INTEGERS, st.sampled_from([0.05, 0.2, 0.5, 0.9]))
def test_discoveries_are_those_of_scipy_on_p_values_counted_one_by_one(calibration, ids, ood, level):
    pooled = np.concatenate([ids, ood + 1.5])
    p = (1 + (calibration[None, :] >= pooled[:, None]).sum(axis=1)) / (calibration.size + 1)
    flagged = false_discovery_control(p) <= level + 1e-12
    got = discoveries(PooledCurve.of(ids, ood + 1.5), calibration, level)
    assert got == (flagged[: ids.size].sum(), flagged[ids.size :].sum())


@pytest.mark.parametrize("level", [0.1, 0.3, 0.7, 0.9])
def test_a_p_value_that_equals_its_bound_is_a_discovery(level):
    # K = 10·q of n + 1 = 10 and all 9 scores rejected: p = q · 9/9.
    k = round(10 * level)
    assert discoveries(PooledCurve.of([0.0], np.full(8, 1.5)), [0.0] * (k - 1) + [-1.0] * (10 - k), level) == (1, 8)


def test_equal_weights_give_the_marginal_p_value():
    rng = np.random.default_rng(0)
    known, asked = rng.integers(0, 30, 50) / 10, rng.integers(-5, 40, 40) / 10  # with ties
    found = weighted_p_values(known, asked, np.full(50, 3.0), np.full(40, 3.0))
    np.testing.assert_allclose(found, p_values(known, asked), rtol=1e-12)


def test_a_weighted_p_value_is_the_share_of_weight_at_least_as_extreme():
    # By hand: weights 1, 2, 3 at scores 1, 2, 3, and 4 for an input of score 2: (4 + 2 + 3) / (4 + 6).
    assert weighted_p_values([3, 1, 2], [2], [3, 1, 2], [4])[0] == pytest.approx(0.9)


def test_weighted_p_values_hold_after_the_shift_they_were_weighted_for():
    # Two kinds of images, 20 % and 80 % before and after: w is 4 and 1/4. The closed form of the share below α is α;
    # unweighted, 0.8·P(s > t | kind 1) + 0.2·P(s > t | kind 0) with most of kind 1 above the old threshold.
    rng, alpha, flagged, plain = np.random.default_rng(1), 0.1, [], []
    for _ in range(300):
        kind, later = rng.random(200) < 0.2, rng.random(50) < 0.8
        known, asked = rng.random(200) + kind, rng.random(50) + later
        weights, own = np.where(kind, 4.0, 0.25), np.where(later, 4.0, 0.25)
        flagged.append((weighted_p_values(known, asked, weights, own) <= alpha).mean())
        plain.append((p_values(known, asked) <= alpha).mean())
    assert np.mean(flagged) == pytest.approx(alpha, abs=0.012)
    assert np.mean(plain) == pytest.approx(0.4, abs=0.03)


def test_an_alpha_is_reached_from_one_over_n_plus_one():
    assert [marginal_size(alpha) for alpha in (0.5, 0.1, 0.05, 0.01, 0.3)] == [1, 9, 19, 99, 3]


def test_the_conditional_size_is_that_of_the_smallest_order_statistic_for_dkwm():
    # b_1 = 1/n + √(log(2/δ)/2n) ≤ α, solved by counting.
    n = np.arange(1, 5000)
    bound = 1 / n + np.sqrt(np.log(2 / 0.05) / (2 * n))
    assert conditional_size(0.1, 0.05, "dkwm") == n[bound <= 0.1][0]
