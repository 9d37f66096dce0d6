import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import (
    accuracy_score,
    auc,
    average_precision_score,
    f1_score,
    precision_recall_curve,
    precision_score,
    recall_score,
    roc_auc_score,
    roc_curve,
)

from openbench import metrics
from openbench.metrics.curve import CURVE_METRICS, PooledCurve, auroc, fpr95, least_count, most_count

from . import metric_oracles as oracle

CASES = [(0, 60, 40, None), (1, 500, 300, 1), (2, 30, 400, 0), (3, 1, 5, None), (4, 7, 1, 0), (5, 1000, 1000, 2)]
PAIRS = [oracle.random_pair(*case) for case in CASES]
# Small integers make ties between and within the sides the rule.
SIDES = st.lists(st.integers(-4, 4), min_size=1, max_size=25).map(lambda xs: np.array(xs, dtype=float))


def labelled(a, b):
    return np.concatenate([np.zeros(a.size), np.ones(b.size)]), np.concatenate([a, b])


def trapezoid_aupr(labels, scores):
    precision, recall, _ = precision_recall_curve(labels, scores)
    return auc(recall, precision)


def agrees_with_definitions(a, b):
    """Compare every metric with scikit-learn, or with what the oracle counts."""
    labels, scores = labelled(a, b)
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    family = PooledCurve.of(a, b).ranking()
    expected = {
        "auroc": roc_auc_score(labels, scores),
        "aupr_out": trapezoid_aupr(labels, scores),
        "aupr_in": trapezoid_aupr(1 - labels, -scores),
        "ap_out": average_precision_score(labels, scores),
        "ap_in": average_precision_score(1 - labels, -scores),
        "fpr95": fpr[tpr >= 0.95].min(),
        "fpr95_id_positive": oracle.fpr95_id_positive(a, b),
        "detection_error": oracle.detection_error(a, b),
    }
    assert {key: family[key] for key in expected} == pytest.approx(expected, abs=1e-12)
    assert (family["auroc"], family["fpr95"]) == pytest.approx((oracle.auroc(a, b), oracle.fpr95(a, b)), abs=1e-12)
    for key in ("auroc", "fpr95", "aupr_in", "aupr_out", "detection_error"):
        assert getattr(metrics, key)(a, b) == family[key]
    assert {key: of(PooledCurve.of(a, b)) for key, of in CURVE_METRICS.items()} == {k: family[k] for k in CURVE_METRICS}


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_metric_equals_scikit_learn_and_its_definition(a, b):
    agrees_with_definitions(a, b)


@given(SIDES, SIDES)
def test_every_metric_of_ties_equals_scikit_learn_and_its_definition(a, b):
    agrees_with_definitions(a, b)


@pytest.mark.parametrize("total", [20, 40, 100, 333, 1000])
def test_fpr95_counts_an_exact_share_as_reached(total):
    # OOD scores 1 … total against one ID score per gap: at TPR exactly k/total ≥ .95 the FPR is read off by hand.
    ood, ids = np.arange(1.0, total + 1), np.arange(0.5, total + 0.5)
    need = next(k for k in range(total + 1) if k / total >= 0.95)
    assert fpr95(ids, ood) == (need - 1) / total


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_f1_is_the_largest_and_its_point_is_reproduced_at_the_recorded_threshold(a, b):
    labels, scores = labelled(a, b)
    got = PooledCurve.of(a, b).ranking()
    flagged = scores >= got["f1_threshold"]
    for key, of in [("f1", f1_score), ("accuracy", accuracy_score), ("precision", precision_score)]:
        assert got[key] == pytest.approx(of(labels, flagged), abs=1e-12)
    assert got["recall"] == pytest.approx(recall_score(labels, flagged), abs=1e-12)
    positive = np.asarray(labels, bool)  # F1 = 2 TP / (positives + flagged)
    best = max(
        2 * np.sum(positive & over) / (positive.sum() + over.sum()) for over in (scores >= t for t in np.unique(scores))
    )
    assert got["f1"] == pytest.approx(best, abs=1e-12)


def test_infinite_scores_are_ranked_at_the_ends():
    a, b = np.array([-np.inf, 0.0, np.inf]), np.array([-np.inf, 1.0, np.inf])
    finite = {-np.inf: -9.0, np.inf: 9.0}
    replaced = [np.array([finite.get(x, x) for x in side]) for side in (a, b)]
    got, want = PooledCurve.of(a, b).ranking(), PooledCurve.of(*replaced).ranking()
    for key in CURVE_METRICS:
        assert got[key] == want[key]


def test_float32_neighbours_are_not_merged():
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    assert auroc(np.array([low]), np.array([high])) == 1.0


def test_inputs_are_left_untouched():
    a, b = oracle.random_pair(0)
    kept = a.copy(), b.copy()
    PooledCurve.of(a, b).ranking()
    np.testing.assert_array_equal(a, kept[0])
    np.testing.assert_array_equal(b, kept[1])


@pytest.mark.parametrize("tpr", [0.3, 0.8, 0.95])
def test_fpr_at_any_tpr_is_read_from_scikit_learns_curve(tpr):
    for a, b in PAIRS:
        labels, scores = labelled(a, b)
        for positive, found in ((1, metrics.fpr_at_tpr(a, b, tpr)), (0, metrics.fpr_at_tpr_id_positive(a, b, tpr))):
            signed = scores if positive else -scores
            fpr, reached, _ = roc_curve(labels == positive, signed, drop_intermediate=False)
            assert found == pytest.approx(fpr[reached >= tpr].min(), abs=1e-12)


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
