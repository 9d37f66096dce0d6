import numpy as np
import pytest
from scipy.stats import binom, ksone

from openbench.errors import MetricError
from openbench.metrics.conformal import corrections as crossing
from openbench.metrics.conformal.corrections import calibrate, crossing_probability


def steck(bounds):
    """P(U_(i) ≤ b_i for all i) by Noé/Steck-type recursion on exact binomial counts: an O(n³) reference.

    q[k] = P(N(b_i) = k and no crossing so far), stepping with binomial increments of the remaining points.
    """
    n, q, last = len(bounds), {0: 1.0}, 0.0
    for i, b in enumerate(bounds, start=1):
        share = (b - last) / (1 - last) if last < 1 else 1.0
        new = {}
        for k, mass in q.items():
            for more in range(n - k + 1):
                if k + more >= i:
                    new[k + more] = new.get(k + more, 0.0) + mass * binom.pmf(more, n - k, share)
        q, last = new, b
    return sum(q.values())


def kolmogorov(n, d):
    """U_(i) > (i−1)/n + d for some i is the event D⁻ > d, which has the law of D⁺."""
    return np.minimum(1.0, np.arange(n) / n + d)


@pytest.mark.parametrize("n", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", range(3))
def test_any_boundary_agrees_with_the_binomial_recursion(n, seed):
    bounds = np.sort(np.random.default_rng(seed).random(n)) ** 0.4
    assert crossing_probability(bounds) == pytest.approx(1 - steck(bounds), abs=1e-9)


@pytest.mark.parametrize("n", [1, 3, 10, 50, 400, 3000, 100_001])  # the last carries many steps at once
@pytest.mark.parametrize("c", [0.4, 0.9, 1.5])
def test_parallel_boundary_has_the_one_sided_kolmogorov_smirnov_tail(n, c):
    d = c / np.sqrt(n)
    assert crossing_probability(kolmogorov(n, d)) == pytest.approx(ksone.sf(d, n), abs=1e-8)


@pytest.mark.parametrize("n", [1, 100, 2048, 2049, 5000, 20_000])
def test_carrying_many_steps_at_once_agrees_with_single_steps(n, monkeypatch):
    i = np.arange(1, n + 1)
    curved = np.maximum.accumulate(np.minimum(1, i / n + 2.5 * np.sqrt(i * (n - i)) / n**1.5 + 1 / n))
    uneven = np.minimum(1, np.ceil(i / 40) * 40 / n + 1 / np.sqrt(n))  # rates of 0, then of 40
    for bounds in (curved, uneven):
        single = crossing_probability(bounds)
        with monkeypatch.context() as patched:
            patched.setattr(crossing, "_STEPPED", 0)
            assert crossing_probability(bounds) == pytest.approx(single, abs=1e-9)


@pytest.mark.parametrize("n", [1, 4, 37, 250])
@pytest.mark.parametrize("level", [0.3, 0.8])
def test_a_single_binding_point_has_the_beta_tail(n, level):
    # Only U_(n) is bounded: it stays below b with probability bⁿ.
    bounds = np.full(n, level)
    assert crossing_probability(bounds) == pytest.approx(1 - level**n, abs=1e-9)


@pytest.mark.parametrize("n", [7, 100_001])
def test_bounds_of_one_are_never_crossed_and_of_zero_always(n):
    assert (crossing_probability(np.ones(n)), crossing_probability(np.zeros(n))) == (0.0, 1.0)


@pytest.mark.parametrize("bounds", [[], [0.5, 0.4], [-0.1, 0.5], [np.nan, 0.5], [0.5, np.nan]])
def test_bounds_out_of_order_are_refused(bounds):
    with pytest.raises(MetricError, match="non-decreasing"):
        crossing_probability(np.array(bounds))


@pytest.mark.parametrize("delta", [1e-4, 0.05, 0.5, 0.95])
def test_calibration_recovers_the_kolmogorov_smirnov_quantile(delta):
    n = 200
    got = calibrate(lambda level: kolmogorov(n, np.sqrt(-np.log(level) / (2 * n))), delta, 0.5)
    spent = ksone.sf(np.sqrt(-np.log(got) / (2 * n)), n)
    assert 0.999 * delta - 1e-9 <= spent <= delta + 1e-9


def test_a_family_that_ignores_its_level_is_refused():
    with pytest.raises(MetricError, match="no boundary is crossed with probability"):
        calibrate(lambda level: kolmogorov(20, 0.3), 0.5, 0.1)
