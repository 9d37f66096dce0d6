"""Hyper-parameters as tables show them."""

import pytest

from openbench.results.records.settings import not_default, over_runs


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([{"k": 50}], "k=50"),
        ([{"k": 50}, {"k": 50}], "k=50"),
        ([{"k": 20}, {"k": 100}, {"k": 50}], "k=20…100 (3 seeds)"),
        ([{"form": "a", "k": 1}, {"form": "b", "k": 1}], "form=a/b, k=1 (2 seeds)"),
        ([{"w": [0.1234567, 2.5]}, {"w": [0.7654321, 3.25]}], "w: 2 choices (2 seeds)"),
        ([{}, {}], ""),
    ],
)
def test_choices_of_several_seeds_become_a_range_or_a_count(chosen, expected):
    assert over_runs(chosen) == expected


def test_only_what_was_tuned_or_set_otherwise_than_the_config_file_is_shown():
    # configs/method/knn.yaml: k 50, index exact, probes 16.
    node = {"_name_": "knn", "_target_": "t", "_space_": {"k": [1]}, "k": 50, "index": "hnsw", "probes": 16}
    params = {"k": 50, "index": "hnsw", "probes": 16, "later": None}
    assert not_default(node, params, {}) == {"index": "hnsw"}
    assert not_default(node, params, {"k": 50}) == {"index": "hnsw", "k": 50}
    assert not_default({**node, "later": 3}, {**params, "later": 3}, {}) == {"index": "hnsw", "later": 3}


@pytest.mark.parametrize(
    ("typed", "shown"), [(1, {}), (1.0, {}), (2, {"temperature": 2}), (True, {"temperature": True})]
)
def test_a_default_that_is_typed_as_a_whole_number_is_the_default(typed, shown):
    # configs/method/energy.yaml: temperature 1.0.
    assert not_default({"_name_": "energy", "temperature": typed}, {"temperature": typed}, {}) == shown
