import numpy as np
import pytest

from openbench.errors import MetricError
from openbench.metrics.curve import PooledCurve, check_rate, least_count, most_count

from . import metric_oracles as oracle


@pytest.mark.parametrize("rate", [0.0, 0.07, 0.29, 0.57, 0.58, 0.95, 1.0])
@pytest.mark.parametrize("total", [1, 20, 37, 100, 9000])
def test_counts_of_a_share_are_the_extreme_ones(rate, total):
    shares = [k / total for k in range(total + 1)]
    assert least_count(rate, total) == next(k for k, share in enumerate(shares) if share >= rate)
    assert most_count(rate, total) == max(k for k, share in enumerate(shares) if share <= rate)


@pytest.mark.parametrize(("n", "m", "decimals"), [(60, 40, None), (60, 40, 0), (9000, 9000, None), (20_000, 11, 2)])
def test_counts_at_every_threshold_are_those_of_the_definition(n, m, decimals):
    a, b = oracle.random_pair(0, n, m, decimals)
    curve = PooledCurve.of(a, b)
    np.testing.assert_array_equal(curve.thresholds[1:], np.unique(np.concatenate([a, b])))
    np.testing.assert_array_equal(curve.id_accepted[1:], np.searchsorted(np.sort(a), curve.thresholds[1:], "right"))
    np.testing.assert_array_equal(curve.ood_accepted[1:], np.searchsorted(np.sort(b), curve.thresholds[1:], "right"))
    assert (curve.thresholds[0], curve.id_accepted[0], curve.ood_accepted[0]) == (-np.inf, 0, 0)
    assert (curve.n, curve.m) == (n, m)


def test_presorted_sides_give_the_same_curve():
    a, b = oracle.random_pair(1, 50, 70, 1)
    one, two = PooledCurve.of(a, b), PooledCurve.of_sorted_id(np.sort(a), np.asarray(b))
    for field in ("thresholds", "id_accepted", "ood_accepted"):
        np.testing.assert_array_equal(getattr(one, field), getattr(two, field))


def test_negative_zero_ties_with_zero():
    assert PooledCurve.of([0.0], [-0.0]).thresholds.size == 2


@pytest.mark.parametrize("value", [-0.1, 1.1, 95.0, float("nan")])
def test_rates_outside_the_unit_interval_are_refused(value):
    with pytest.raises(MetricError, match="found"):
        check_rate(value, "rate")
