import numpy as np
import pytest
from scipy.stats import beta

from openbench.metrics.conformal.prediction_sets import (
    Nonconformity,
    conformal_quantile,
    prediction_sets,
    set_report,
    true_class,
)

from . import metric_oracles as oracle

KINDS = [Nonconformity("lac"), Nonconformity("aps"), Nonconformity("raps", penalty=0.1, k_reg=2)]


def softmax_sample(rng, n, c=6):
    y = rng.integers(0, c, n)
    z = rng.normal(size=(n, c))
    z[np.arange(n), y] += 1.5
    p = np.exp(z)
    return p / p.sum(axis=1, keepdims=True), y


@pytest.mark.parametrize("alpha", [0.05, 0.1])
@pytest.mark.parametrize("score", KINDS, ids=lambda s: s.kind)
def test_coverage_over_a_thousand_splits_is_the_promised_one(score, alpha):
    # Continuous scores: mean coverage is ⌈(n+1)(1−α)⌉/(n+1) exactly, over calibration sets of n = 49.
    rng, n, covered = np.random.default_rng(0), 49, []
    p, y = softmax_sample(rng, 4000)
    own = true_class(oracle.class_scores(score, p), y)
    for _ in range(1000):
        order = rng.permutation(4000)
        q = conformal_quantile(own[order[:n]], alpha)
        covered.append(np.mean(own[order[n:]] <= q))
    want = np.ceil((n + 1) * (1 - alpha)) / (n + 1)
    assert np.mean(covered) == pytest.approx(want, abs=5 * np.std(covered) / np.sqrt(1000))


def test_coverage_given_the_calibration_set_has_its_beta_law():
    rng, n, alpha = np.random.default_rng(1), 30, 0.2
    k = int(np.ceil((n + 1) * (1 - alpha)))
    true_coverage = [conformal_quantile(rng.random(n), alpha) for _ in range(4000)]  # uniform scores: q is coverage
    for level in (0.1, 0.5, 0.9):
        assert np.quantile(true_coverage, level) == pytest.approx(beta.ppf(level, k, n + 1 - k), abs=0.01)


@pytest.mark.parametrize(("n", "alpha", "rank"), [(9, 0.1, 9), (9, 0.7, 3), (99, 0.01, 99), (100, 0.1, 91)])
def test_quantile_is_the_stated_order_statistic(n, alpha, rank):
    assert conformal_quantile(np.arange(1, n + 1), alpha) == rank


def test_too_few_scores_for_the_level_give_the_full_set():
    assert conformal_quantile(np.arange(8), 0.1) == np.inf
    assert prediction_sets(np.ones((2, 3)), np.inf).all()


def test_report_by_hand():
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], dtype=bool)
    labels = np.array([0, 1, 0, 1])
    got = set_report(sets[np.arange(4), labels], sets.sum(axis=1), labels)
    assert got.coverage == 0.75
    assert got.size == 1.25
    assert got.singletons == 0.25
    assert got.worst_class == 0.5  # class 0; class 2 has no samples
