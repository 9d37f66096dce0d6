"""Double scores on the reject-option paper's synthetic problem, and their envelope over all weights."""

import functools

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from openbench.metrics.selective.double_score import (
    DEFAULT_MUS,
    ScorePair,
    Standard,
    best_weighing,
    combine,
    envelope,
    two_thresholds,
    weighings,
)
from openbench.metrics.selective.risk import UNABLE, PrecisionRecall, SelectiveCurve, TprFpr, oscr_selective

from . import metric_oracles as oracle

BOUNDED, PRECISE = TprFpr(0.7, 0.2), PrecisionRecall(0.9, 0.7, 0.25)
PUBLISHED, PRINTED = 2.0, 3.0  # OOD means: that from which the published table follows, and that in the text


@functools.cache
def large(mean):
    return oracle.sample(150_000, 150_000, 0, mean)


def best(id_pair, losses, ood_pair, constraint, mus=DEFAULT_MUS, standard=None):
    """The best weighing; without a standard in the units of the ID scores."""
    standard = standard or Standard.of(id_pair)
    return best_weighing(weighings((id_pair, ood_pair), losses, standard, constraint, mus))


def weighed(mu):
    return lambda pair: pair.risk + mu * pair.separation


def least_risk_by_integration(mu, mean, constraint):
    found = oracle.integrals(weighed(mu), mean)
    feasible = oracle.allowed(constraint, found.tpr, found.fpr)
    return found.risk[feasible].min() if feasible.any() else None


@pytest.mark.parametrize(("mean", "constraint", "mu"), [(PUBLISHED, BOUNDED, 0.05), (PRINTED, PRECISE, 0.104)])
def test_a_double_score_of_given_weight_has_the_risk_that_integration_gives(mean, constraint, mu):
    got = best(*large(mean), constraint, [mu], Standard())
    assert got.point.value == pytest.approx(least_risk_by_integration(mu, mean, constraint), abs=1.5e-3)


@pytest.mark.parametrize(
    ("mean", "constraint", "best_mu", "least"),
    [
        (PUBLISHED, BOUNDED, 0.0436, 0.1259),
        (PRINTED, PRECISE, 0.0999, 0.1815),
    ],
)
def test_the_best_weight_is_found_at_the_edge_of_feasibility(mean, constraint, best_mu, least):
    # Risk falls with μ until the constraint can no longer be met; both by integration and in the sample.
    assert least_risk_by_integration(best_mu + 1e-4, mean, constraint) == pytest.approx(least, abs=2e-4)
    assert least_risk_by_integration(best_mu - 1e-3, mean, constraint) is None
    assert least_risk_by_integration(best_mu + 0.02, mean, constraint) > least + 0.0015
    steps = [-0.01, *np.arange(-0.003, 0.004, 0.001), 0.01, 0.02]
    got = best(*large(mean), constraint, best_mu + np.array(steps), Standard())
    assert got.mu == pytest.approx(best_mu, abs=2e-3)
    assert got.point.value == pytest.approx(least, abs=1.5e-3)


def test_an_infeasible_constraint_gives_unable():
    id_pair, losses, _ = oracle.sample(500, 500, 4)
    assert best(id_pair, losses, id_pair, TprFpr(0.9, 0.01)) == UNABLE


def test_the_second_score_is_absent_at_weight_zero_even_if_infinite():
    got = combine(ScorePair([1.0, 2.0], [np.inf, 0.0]), Standard(), 0.0)
    np.testing.assert_array_equal(got, [1.0, 2.0])


def by_all_thresholds(ids, ood, losses):
    """DS-F1 and DS-AURC by the definition: every pair of thresholds."""
    (r, g), (r_ood, g_ood) = ids, ood
    best, least = 0.0, {}
    for t in np.unique(np.r_[r, r_ood]):
        for u in np.unique(np.r_[g, g_ood]):
            inside = (r <= t) & (g <= u)
            accepted = inside.sum() + ((r_ood <= t) & (g_ood <= u)).sum()
            right = (inside & (losses == 0)).sum()
            if right:
                precision, recall = right / accepted, right / r.size
                best = max(best, 2 * precision * recall / (precision + recall))
            if inside.any():
                least[inside.sum()] = min(least.get(inside.sum(), 1.0), 1 - right / accepted)
    return best, np.mean([least[min(k for k in least if k >= wanted)] for wanted in range(1, r.size + 1)])


@pytest.mark.parametrize("decimals", [8, 0])
def test_two_thresholds_are_those_of_a_search_of_all_pairs(decimals):
    rng = np.random.default_rng(3)
    ids, ood = rng.normal(size=(2, 25)).round(decimals), rng.normal(1, 1, size=(2, 20)).round(decimals)
    losses = (rng.random(25) < 0.3).astype(float)
    found = two_thresholds((ScorePair(*ids), ScorePair(*ood)), losses)
    assert found == pytest.approx(by_all_thresholds(ids, ood, losses), abs=1e-12)


MUS = [0.0, 0.3, 1.0, 5.0]


def drawn(seed, decimals):
    rng = np.random.default_rng(seed)
    ids, ood = rng.normal(size=(2, 40)), rng.normal((0.5, 1.5), 1, size=(25, 2)).T
    losses = (rng.random(40) < 0.3).astype(float)
    pairs = [ScorePair(*(x if decimals is None else x.round(decimals))) for x in (ids, ood)]
    return tuple(pairs), losses


def total(pair, mu):
    return np.asarray(pair.risk) + mu * np.asarray(pair.separation)


CASES = [(0, None), (1, None), (2, 1), (3, 0)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_with_one_weight_the_areas_are_those_of_a_single_score(case, mu):
    sets, losses = drawn(*case)
    ids, ood = (total(pair, mu) for pair in sets)
    found, truth = envelope(sets, losses, Standard(), [mu]), np.repeat([1, 0], [40, 25])
    assert found.auroc == pytest.approx(roc_auc_score(truth, -np.r_[ids, ood]), abs=1e-12)
    assert found.oscr_selective == pytest.approx(oscr_selective(SelectiveCurve.of(ids, losses, ood)), abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_each_point_is_the_best_over_all_weights_and_thresholds(case):
    sets, losses = drawn(*case)
    found = envelope(sets, losses, Standard(), MUS)
    sides = [tuple(total(pair, mu) for pair in sets) for mu in MUS]
    reached = [(np.sum(a <= t), np.sum(b <= t)) for a, b in sides for t in np.r_[a, b]]
    for k in range(1, 41):
        assert found.fpr[k - 1] == min(b for a, b in reached if a >= k) / 25
    assert found.fpr_at_tpr(0.8) == found.fpr[31]
    assert found.fpr_at_tpr(0.0) == found.fpr[0]


@pytest.mark.parametrize("case", CASES)
def test_auroc_is_the_area_of_the_lowest_of_scikit_learns_curves(case):
    sets, losses = drawn(*case)
    middle, lines = (np.arange(40) + 0.5) / 40, []
    for mu in MUS:
        ids, ood = (total(pair, mu) for pair in sets)
        fpr, tpr, _ = roc_curve(np.repeat([1, 0], [40, 25]), -np.r_[ids, ood], drop_intermediate=False)
        lines.append(np.interp(middle, tpr, fpr))
    found = envelope(sets, losses, Standard(), MUS)
    assert found.auroc == pytest.approx(1 - np.min(lines, axis=0).mean(), abs=1e-12)


def test_without_ties_accuracy_is_the_best_that_any_weight_counts():
    sets, losses = drawn(0, None)
    found = envelope(sets, losses, Standard(), MUS)
    accuracy = np.zeros((len(MUS), 25))
    for row, mu in enumerate(MUS):
        ids, ood = (total(pair, mu) for pair in sets)
        for j, t in enumerate(np.sort(ood)):
            accuracy[row, j] = (1 - losses)[ids < t].mean() if (ids < t).any() else 0.0
    assert found.oscr_selective == pytest.approx(accuracy.max(axis=0).mean(), abs=1e-12)
