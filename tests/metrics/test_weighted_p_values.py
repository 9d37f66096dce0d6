"""Weighted conformal p-values, and the sizes from which an α can be reached."""

import numpy as np
import pytest

from openbench.errors import MetricError
from openbench.metrics.conformal.p_values import conditional_size, marginal_size, p_values, weighted_p_values


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


@pytest.mark.parametrize("weights", [[1, 2], [1, 2, 0], [1, 2, np.inf]])
def test_weights_that_are_no_density_ratios_are_refused(weights):
    with pytest.raises(MetricError, match="weights"):
        weighted_p_values([1, 2, 3], [2], weights, [1])


def test_an_alpha_is_reached_from_one_over_n_plus_one():
    assert [marginal_size(alpha) for alpha in (0.5, 0.1, 0.05, 0.01, 0.3)] == [1, 9, 19, 99, 3]


def test_the_conditional_size_is_that_of_the_smallest_order_statistic_for_dkwm():
    # b_1 = 1/n + √(log(2/δ)/2n) ≤ α, solved by counting.
    n = np.arange(1, 5000)
    bound = 1 / n + np.sqrt(np.log(2 / 0.05) / (2 * n))
    assert conditional_size(0.1, 0.05, "dkwm") == n[bound <= 0.1][0]
