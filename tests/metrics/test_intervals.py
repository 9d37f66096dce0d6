import numpy as np
import pytest
from scipy.stats import norm

from openbench.errors import MetricError
from openbench.metrics.curve import CURVE_METRICS, PooledCurve
from openbench.metrics.intervals import (
    bootstrap,
    delong,
    delong_variance,
    group_delong_variance,
    over_seeds,
    resampled,
)

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


def test_group_of_one_has_the_variance_of_its_set():
    curve = PooledCurve.of(*oracle.random_pair(4))
    assert group_delong_variance([curve]) == pytest.approx(delong_variance(curve), rel=1e-12)


def test_delong_interval_covers_the_true_auroc_at_its_level():
    rng, truth, hits = np.random.default_rng(0), norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(2000):
        low, high = delong(PooledCurve.of(rng.normal(size=150), rng.normal(size=100) + 1))
        hits += low <= truth <= high
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)


def test_interval_half_width_is_z_standard_errors():
    curve = PooledCurve.of(*oracle.random_pair(0, 300, 300))
    low, high = delong(curve, 0.9)
    assert (high - low) / 2 == pytest.approx(1.6448536 * np.sqrt(delong_variance(curve)), rel=1e-6)
    assert (low + high) / 2 == pytest.approx(curve.auroc())


def test_intervals_stay_within_the_unit_interval():
    assert delong(PooledCurve.of([0.0, 1.0], [2.0, 3.0])) == (1.0, 1.0)
    low, high = delong(PooledCurve.of([0.0, 1.0, 5.0], [2.0, 3.0, 9.0]))
    assert 0 <= low < high <= 1


def test_bootstrap_interval_of_auroc_agrees_with_delong():
    curve = PooledCurve.of(*oracle.random_pair(1, 400, 300))
    drawn = bootstrap(curve, {"auroc": PooledCurve.auroc}, replicates=2000, seed=3)["auroc"]
    assert drawn == pytest.approx(delong(curve), abs=0.006)


def test_bootstrap_values_are_those_of_resampled_scores():
    # A replicate of the curve must be the curve of some multiset of the scores, ties and all.
    a, b = oracle.random_pair(2, 40, 30, 1)
    curve = PooledCurve.of(a, b)
    again = resampled(curve, np.random.default_rng(0))
    drawn_id = np.repeat(curve.thresholds[1:], np.diff(again.id_accepted))
    drawn_ood = np.repeat(curve.thresholds[1:], np.diff(again.ood_accepted))
    assert (drawn_id.size, drawn_ood.size) == (40, 30)
    assert np.isin(drawn_id, a).all()
    assert np.isin(drawn_ood, b).all()
    fresh = PooledCurve.of(drawn_id, drawn_ood)
    for key, metric in CURVE_METRICS.items():
        assert metric(again) == pytest.approx(metric(fresh), abs=1e-12), key


def test_bootstrap_sampling_is_uniform_with_replacement():
    curve = PooledCurve.of(np.arange(20.0), np.arange(20.0, 30.0))
    rng, counts = np.random.default_rng(0), np.zeros(30)
    for _ in range(3000):
        again = resampled(curve, rng)
        counts += np.diff(again.id_accepted) + np.diff(again.ood_accepted)
    np.testing.assert_allclose(counts / 3000, 1.0, atol=5 / np.sqrt(3000))


def test_bootstrap_spread_of_a_proportion_matches_the_binomial():
    # fpr95 of well-separated OOD at a fixed threshold is a share of ID: its bootstrap law is binomial.
    ids = np.concatenate([np.zeros(70), np.full(30, 10.0)])
    curve = PooledCurve.of(ids, np.full(50, 5.0))
    low, high = bootstrap(curve, {"fpr95": CURVE_METRICS["fpr95"]}, replicates=4000)["fpr95"]
    assert low == pytest.approx(0.3 - 1.96 * np.sqrt(0.21 / 100), abs=0.012)
    assert high == pytest.approx(0.3 + 1.96 * np.sqrt(0.21 / 100), abs=0.012)


def test_equal_seeds_give_equal_intervals_and_others_do_not():
    curve = PooledCurve.of(*oracle.random_pair(3))
    metrics = {"fpr95": CURVE_METRICS["fpr95"], "aupr_in": CURVE_METRICS["aupr_in"]}
    one, two, other = (bootstrap(curve, metrics, 50, seed) for seed in (7, 7, 8))
    assert one == two
    assert one != other


@pytest.mark.parametrize(("replicates", "level"), [(1, 0.95), (0, 0.95), (10, 1.0), (10, 95.0)])
def test_bootstrap_refuses_what_gives_no_interval(replicates, level):
    with pytest.raises(MetricError):
        bootstrap(PooledCurve.of([0.0], [1.0]), {"auroc": PooledCurve.auroc}, replicates, level=level)


def test_seeds_are_summarised_with_the_population_deviation():
    assert over_seeds([0.9, 0.92, 0.97]) == pytest.approx((0.93, np.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 3), 3))


def test_no_seeds_are_refused():
    with pytest.raises(MetricError, match="empty"):
        over_seeds([])


def test_group_variance_refuses_curves_of_different_id_sets():
    with pytest.raises(MetricError, match="share one ID set"):
        group_delong_variance([PooledCurve.of([0.0], [1.0]), PooledCurve.of([0.0, 1.0], [1.0])])
