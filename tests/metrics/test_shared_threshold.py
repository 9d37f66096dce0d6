"""Thresholds shared by several groups, against counting by hand and scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import f1_score

from openbench.errors import MetricError
from openbench.metrics.curve import PooledCurve
from openbench.metrics.threshold import f1_at, shared_thresholds

RNG = np.random.default_rng(0)
GROUPS = {
    "low": (RNG.normal(size=60), RNG.normal(2, 1, size=40)),
    "high": (RNG.normal(3, 1, size=50), RNG.normal(5, 1, size=70)),
    "wide": (RNG.normal(0, 2, size=45).round(1), RNG.normal(3, 2, size=30).round(1)),
}


def f1_by_sklearn(pair, threshold):
    truth = np.repeat([0, 1], [len(pair[0]), len(pair[1])])
    return f1_score(truth, np.concatenate(pair) >= threshold)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.lists(st.integers(0, 6), min_size=1, max_size=9),
    st.lists(st.integers(-2, 16).map(lambda k: k / 2), min_size=1, max_size=6),
)
def test_f1_at_any_threshold_is_that_of_scikit_learn(inside, outside, thresholds):
    pair = (np.array(inside, float), np.array(outside, float))
    found = f1_at(PooledCurve.of(*pair), np.array(thresholds))
    assert found == pytest.approx([f1_by_sklearn(pair, t) for t in thresholds])


def test_each_group_has_its_own_best_and_finds_it_in_the_common_set():
    found = shared_thresholds(GROUPS)
    for name, pair in GROUPS.items():
        every = {t: f1_by_sklearn(pair, t) for t in np.concatenate(pair)}
        group = found.groups[name]
        assert group.own == pytest.approx(max(every.values()))
        assert every[group.threshold] == pytest.approx(group.own)
        assert group.threshold == PooledCurve.of(*pair).best_f1.threshold


def test_the_other_groups_thresholds_and_one_for_all_are_the_best_of_those():
    found = shared_thresholds(GROUPS)
    own = {name: group.threshold for name, group in found.groups.items()}
    for name, pair in GROUPS.items():
        others = {other: f1_by_sklearn(pair, t) for other, t in own.items() if other != name}
        best = max(others, key=others.__getitem__)
        assert found.groups[name].others == pytest.approx(others[best])
        assert found.groups[name].others_threshold == own[best]
        assert found.groups[name].others < found.groups[name].own
    means = {t: np.mean([f1_by_sklearn(pair, t) for pair in GROUPS.values()]) for t in own.values()}
    assert found.single_threshold == max(means, key=means.__getitem__)
    assert np.mean([group.single for group in found.groups.values()]) == pytest.approx(max(means.values()))


def test_spread_is_that_of_the_groups_own_thresholds():
    found = shared_thresholds(GROUPS)
    own = [group.threshold for group in found.groups.values()]
    mean = sum(own) / 3
    assert found.variance == pytest.approx(sum((t - mean) ** 2 for t in own) / 3)
    assert found.std == pytest.approx(found.variance**0.5)
    assert found.range == max(own) - min(own)
    assert found.relative_std == pytest.approx(found.std / np.mean([np.std(a) for a, _ in GROUPS.values()]))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "at least one group"),
        ({"a": ([0.0], [np.nan])}, "NaN"),
        ({"endless": ([0.0], [np.inf]), "b": GROUPS["low"]}, "best threshold of endless is infinite"),
    ],
)
def test_groups_without_thresholds_are_refused(groups, message):
    with pytest.raises(MetricError, match=message):
        shared_thresholds(groups)


def test_a_single_group_has_no_others():
    found = shared_thresholds({"low": GROUPS["low"]})
    assert (found.groups["low"].others, found.groups["low"].others_threshold) == (None, None)
    assert found.groups["low"].single == found.groups["low"].own


def test_constant_id_scores_have_no_unit():
    assert shared_thresholds({"a": (np.zeros(3), np.ones(3))}).relative_std is None
