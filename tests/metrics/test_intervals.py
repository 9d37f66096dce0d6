import numpy as np
import pytest
from scipy.stats import norm

from openbench.errors import MetricError
from openbench.metrics.curve import PooledCurve
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


def test_group_variance_refuses_curves_of_different_id_sets():
    with pytest.raises(MetricError, match="share one ID set"):
        group_delong_variance([PooledCurve.of([0.0], [1.0]), PooledCurve.of([0.0, 1.0], [1.0])])
