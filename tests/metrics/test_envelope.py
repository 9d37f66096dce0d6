"""The best weight at every operating point, against scikit-learn, counting by hand and numerical integration."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from openbench.metrics.selective.double_score import ScorePair, Standard, envelope
from openbench.metrics.selective.risk import SelectiveCurve, oscr_selective

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
