"""Prediction sets over random splits, and sets made of a method's own score of a class: literal definitions beside."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import softmax

from openbench.core.scores import SetScores
from openbench.errors import MetricError
from openbench.metrics import suite
from openbench.metrics.conformal.prediction_sets import (
    Nonconformity,
    SetSplit,
    SortedClasses,
    conformal_quantile,
    given_split,
    over_splits,
    prediction_sets,
    probabilities_from,
    set_report,
    true_class,
)
from openbench.metrics.suite import MetricOptions, evaluate

from . import metric_oracles as oracle

KINDS = {"lac": Nonconformity("lac"), "aps": Nonconformity("aps"), "raps": Nonconformity("raps", 0.1, 2), "score": None}


def distances(seed, n, c=6):
    """Class scores as squared distances, smallest for the label more often than not, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, c, n)
    s = rng.exponential(4.0, (n, c)) + 3.0
    s[np.arange(n), y] -= rng.exponential(3.0, n)
    return np.maximum(s, 0), y


def sorted_classes(values, y, kind):
    """Values sorted as a kind of set needs them."""
    if KINDS[kind] is None:
        return SortedClasses.of_scores(values, y)
    return next(SortedClasses.of_probabilities(values, y, [KINDS[kind]]))


def literal(kind, values, u):
    """(n, c) scores by a loop over rows and classes."""
    if kind in ("score", "lac"):
        return values if kind == "score" else 1 - values
    found = np.empty_like(values)
    for row, p in enumerate(values):
        for y, own in enumerate(p):
            found[row, y] = p[p > own].sum() + own - u[row] * own
            found[row, y] += 0.1 * max(1 + (p > own).sum() - 2, 0) if kind == "raps" else 0
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_means_and_deviations_are_those_of_sets_formed_whole_in_each_split(kind):
    s, y = distances(0, 300)
    values = s if kind == "score" else softmax(-s, axis=1)
    got = over_splits(sorted_classes(values, y, kind), 100, (0.1, 0.3), splits=6, seed=3)
    for index, alpha in enumerate((0.1, 0.3)):
        coverage, size = [], []
        for split in range(6):
            rng = np.random.default_rng([3, split])
            order, u = rng.permutation(300), rng.random(300)
            scores = literal(kind, values, u)
            fit, rest = order[:100], order[100:]
            sets = scores[rest] <= np.sort(scores[fit, y[fit]])[int(np.ceil(101 * (1 - alpha) - 1e-9)) - 1]
            coverage.append(sets[np.arange(200), y[rest]].mean())
            size.append(sets.sum(axis=1).mean())
        want = (np.mean(coverage), np.std(coverage), np.mean(size), np.std(size))
        assert got[index] == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_reports_are_those_of_sets_formed_whole(kind, decimals):
    s, y = distances(5, 400)
    s = s if decimals is None else s.round(0)  # ties within a row, broken by the number of the class
    values = s if kind == "score" else softmax(-s, axis=1)
    split = given_split(150, 250, seed=4)
    parts = values[:150], values[150:]
    if kind != "score":
        parts = [oracle.class_scores(KINDS[kind], part, seed) for seed, part in zip((4, 5), parts, strict=True)]
    for alpha, got in zip((0.05, 0.3), sorted_classes(values, y, kind).reports(split, (0.05, 0.3)), strict=True):
        sets = prediction_sets(parts[1], conformal_quantile(true_class(parts[0], y[:150]), alpha))
        want = set_report(sets[np.arange(250), y[150:]], sets.sum(axis=1), y[150:])
        assert got == pytest.approx(want, abs=1e-12)


def test_ties_and_classes_that_never_fit_keep_sizes_whole():
    s = np.array([[1.0, 1.0, np.inf]] * 40)
    got = over_splits(SortedClasses.of_scores(s, np.zeros(40, int)), 20, (0.2,), splits=3, seed=0)[0]
    assert got == (1.0, 0.0, 2.0, 0.0)


@pytest.mark.parametrize("kind", ["lac", "aps"])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_sets_are_those_of_exact_arithmetic_however_small_the_probabilities(kind, scale):
    """At 40 most probabilities are below 1e-16, which a sum near 1 does not see; fractions of integers do."""
    s, y = distances(3, 400, c=5)
    s = scale * s
    u = np.random.default_rng(9).random(400)
    classes = next(SortedClasses.of_probabilities(probabilities_from(s), y, [KINDS[kind]]))
    exact = []
    for row, drawn in zip(probabilities_from(s), u, strict=True):
        p = [Fraction(float(value)) for value in row]
        total = sum(p)
        if kind == "lac":
            exact.append([1 - value / total for value in p])
        else:
            exact.append([(sum(o for o in p if o >= own) - Fraction(float(drawn)) * own) / total for own in p])
    calibrated, tested = np.arange(150), np.arange(150, 400)
    fitted = sorted(exact[row][y[row]] for row in calibrated)
    for alpha in (0.01, 0.05, 0.3):
        quantile = fitted[int(np.ceil(151 * (1 - alpha) - 1e-9)) - 1]
        sets = np.array([[value <= quantile for value in exact[row]] for row in tested])
        report = classes.reports(SetSplit(calibrated, tested, u), [alpha])[0]
        assert report == set_report(sets[np.arange(250), y[tested]], sets.sum(axis=1), y[tested])
    assert not sets.all()


def test_probabilities_of_distances_are_the_softmax_of_their_negatives():
    s, _ = distances(3, 20)
    np.testing.assert_allclose(probabilities_from(1000 * s), softmax(-1000 * s, axis=1), atol=1e-12)
    s[:, 2] = np.inf
    p = probabilities_from(s)
    assert (p[:, 2] == 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    # Where no class fits, none fits better than another; a class that fits perfectly takes all.
    np.testing.assert_allclose(probabilities_from([[np.inf] * 4, [-np.inf, 0, 0, 0]]), [[0.25] * 4, [1, 0, 0, 0]])


def as_sets(columns, seed=0, n=(150, 400)):
    found = []
    for index, role in enumerate(("id_val", "id_test")):
        s, y = distances(seed + index, n[index])
        made = {name: make(s) for name, make in columns.items()}
        found.append(SetScores("a", role, s.min(axis=1), labels=y, **made))
    return [*found, SetScores("b", "far", np.array([9.0, 12.0]))]


def values_of(columns, **options):
    sets = as_sets(columns)
    return evaluate(sets, MetricOptions(families=("prediction_sets",), alphas=(0.1,), **options))["id"]


def test_a_score_of_classes_gives_its_own_sets_and_those_of_its_softmax():
    found = values_of({"class_scores": lambda s: s})
    by_hand = {}
    (cal, cal_y), (test, test_y) = distances(0, 150), distances(1, 400)
    for kind in ("lac", "aps", "raps"):
        rule = Nonconformity(kind, 0.01, 1)
        q = conformal_quantile(true_class(oracle.class_scores(rule, softmax(-cal, axis=1), 0), cal_y), 0.1)
        sets = prediction_sets(oracle.class_scores(rule, softmax(-test, axis=1), 1), q)
        by_hand[f"score_{kind}_coverage@0.1"] = sets[np.arange(400), test_y].mean()
        by_hand[f"score_{kind}_size@0.1"] = sets.sum(axis=1).mean()
        by_hand[f"score_{kind}_singletons@0.1"] = (sets.sum(axis=1) == 1).mean()
    assert {key: found[key] for key in by_hand} == pytest.approx(by_hand, abs=1e-12)
    assert "score_size@0.1" in found
    assert not any(key.startswith(("lac", "aps", "raps")) for key in found)


def test_sets_of_probabilities_that_a_method_gives_itself_are_made_of_these():
    p = {
        "class_scores": lambda s: 1 - softmax(-s / 3, axis=1),
        "class_probabilities": lambda s: softmax(-s / 3, axis=1),
    }
    found, classifier = values_of(p), values_of({"probabilities": p["class_probabilities"]})
    for key, value in classifier.items():
        if key.startswith(("lac", "aps", "raps")):
            assert found[f"score_{key}"] == pytest.approx(value, abs=1e-12), key


def test_prediction_sets_of_the_same_class_probabilities_and_options_are_measured_once(monkeypatch):
    columns = {"probabilities": lambda s: softmax(-s / 7, axis=1)}
    found = values_of(columns)

    def measured(*_):
        raise LookupError

    monkeypatch.setattr(suite, "_set_metrics", measured)
    assert values_of(columns) == found
    for others, options in (({"probabilities": lambda s: softmax(-s / 8, axis=1)}, {}), (columns, {"set_splits": 3})):
        with pytest.raises(LookupError):
            values_of(others, **options)


@pytest.mark.parametrize("kind", [object, float, str])
def test_labels_of_prediction_sets_that_are_not_integers_are_refused_also_if_they_say_the_same(kind):
    sets = as_sets({"probabilities": lambda s: softmax(-s / 7, axis=1)})
    options = MetricOptions(families=("prediction_sets",))
    evaluate(sets, options)
    odd = [replace(s, labels=None if s.labels is None else s.labels.astype(kind)) for s in sets]
    with pytest.raises(MetricError, match="labels do not fit the class scores"):
        evaluate(odd, options)


def test_full_spectrum_sets_are_not_split_at_random():
    # Shifted ID images are not exchangeable with validation: a random split would hide that.
    sets = as_sets({"class_scores": lambda s: s})
    s, y = distances(9, 100)
    sets.append(SetScores("shifted", "csid", s.min(axis=1), labels=y, class_scores=s))
    found = evaluate(sets, MetricOptions(families=("prediction_sets",), alphas=(0.1,)))
    assert "score_lac_size_mean@0.1" in found["id"]
    assert "score_lac_size@0.1" in found["full_spectrum/id"]
    assert not any("_mean@" in key for key in found["full_spectrum/id"])
