import numpy as np
import pytest
from scipy.integrate import quad

from openbench.errors import MetricError
from openbench.metrics.curve import PooledCurve
from openbench.metrics.threshold import (
    Scale,
    balanced_threshold,
    choose_scale,
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


def test_exact_areas_equal_a_peer():
    from openbench._compat import prepare_torchvision

    prepare_torchvision()  # the peer imports torchvision
    functional = pytest.importorskip("pytorch_ood.metrics.functional", reason="pytorch-ood is not installed")
    import torch

    a, b = oracle.random_pair(5, 300, 200)
    labels = torch.tensor([1] * 300 + [-1] * 200)
    peer = float(functional.autc(torch.tensor(np.concatenate([a, b])), labels))
    assert threshold_areas(a, b, Scale.of([a, b])).autc == pytest.approx(peer, abs=1e-12)


@pytest.mark.parametrize("scores", [[np.zeros(4)], [np.array([0.0, np.inf])], [np.array([-np.inf]), np.array([1.0])]])
def test_a_range_without_affine_map_is_refused(scores):
    with pytest.raises(MetricError, match="finite, non-constant range"):
        Scale.of(scores)


def test_unknown_scaling_suggests_the_nearest():
    with pytest.raises(MetricError, match="did you mean 'benchmark'"):
        choose_scale("benchmrk", (), (), ())


def test_validation_scaling_without_validation_is_refused():
    with pytest.raises(MetricError, match="no such split"):
        choose_scale("validation", (np.zeros(1),), (np.zeros(1),), ())


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


@pytest.mark.parametrize(("thresholds", "scores"), [([], [0.0, 1.0]), ([1.0], [2.0, 2.0]), ([np.inf], [0.0, 1.0])])
def test_stability_without_a_unit_is_refused(thresholds, scores):
    with pytest.raises(MetricError, match="threshold stability"):
        threshold_stability(thresholds, np.array(scores))
