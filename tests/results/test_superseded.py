"""Records of code that has changed since: not ranked; and hyper-parameters as tables show them."""

import pytest

from openbench.cli.app import carry_out
from openbench.core.record import ResultRecord
from openbench.results.frame import superseding
from openbench.results.leaderboard.pages import generate, write
from openbench.results.leaderboard.ranking import boards
from openbench.results.records.settings import not_default, over_runs
from openbench.results.records.store import RecordStore

from .records import make_record, named

OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def record(utc: str, seed: int = 0, version: int = 1, **made) -> ResultRecord:
    base = make_record()
    changes = {"method": {**base.method, "version": version}, "provenance": {**base.provenance, "utc": utc, **made}}
    return named(make_record(config={**base.config, "seed": seed}, **changes))


BEFORE, AFTER = {"sources": {"mine": "1" * 64, "same": "3" * 64}}, {"sources": {"mine": "2" * 64, "same": "3" * 64}}
KNN, DIRTY = "openbench/methods/knn.py", {"uncommitted": {"openbench/methods/knn.py": "1" * 64}}
PAIRS = {
    "an edited source": (record(OLD, **BEFORE), record(NEW, **AFTER), "made before a change of mine"),
    "a raised version": (
        record(NEW, version=1),
        record(OLD, version=2),
        "made by version 1 of the method, which is now at 2",
    ),
    "a commit": (record(NEW, **DIRTY), record(OLD), f"it was made from uncommitted changes in {KNN}"),
    "a further change": (
        record(OLD, **DIRTY),
        record(NEW, uncommitted={KNN: "2" * 64}),
        f"it was made from uncommitted changes in {KNN}",
    ),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_what_changed_code_made_is_superseded_and_only_the_latest_is_ranked(tmp_path, pair):
    old, new, why = pair
    store = RecordStore(tmp_path)
    store.write(old)
    assert superseding(new, store) == ([f"{old.run_id} ({why})"], ""), "before the new one is written"
    store.write(new)
    said = f"superseded by {new.run_id}: {why}"
    assert superseding(old, store) == ([], said)
    for board in boards(store):
        assert [row.runs for row in board.ranked] == [(new.run_id,)]
        assert [(row.runs, row.reasons) for row in board.unranked] == [((old.run_id,), (said,))]


def test_records_of_the_same_code_stand_side_by_side(tmp_path):
    store = RecordStore(tmp_path)
    first, second = (record(utc, seed=seed, **AFTER) for seed, utc in enumerate((OLD, NEW)))
    for one in (first, second):
        store.write(one)
    assert superseding(first, store) == superseding(second, store) == ([], "")
    (board,) = [board for board in boards(store) if not board.full_spectrum]
    assert [len(row.runs) for row in board.ranked] == [2]


def test_seeds_of_two_sources_are_never_averaged(tmp_path):
    """Seed 1 was not run again since the edit: its record is of other code than the row's."""
    store = RecordStore(tmp_path)
    made = [record(OLD, seed=0, **BEFORE), record(OLD, seed=1, **BEFORE), record(NEW, seed=0, **AFTER)]
    for one in made:
        store.write(one)
    board = boards(store)[0]
    assert [row.runs for row in board.ranked] == [(made[2].run_id,)]
    assert [set(row.runs) for row in board.unranked] == [{made[0].run_id, made[1].run_id}]


def test_the_page_and_the_record_say_so(tmp_path, capsys):
    store = RecordStore(tmp_path)
    old, new, why = PAIRS["an edited source"]
    store.write(old)
    store.write(new)
    write(tmp_path, generate(tmp_path).files)
    assert why in (tmp_path / "leaderboard" / "toy.md").read_text()
    for one, said in ((old, f"superseded by {new.run_id}: {why}"), (new, f"supersedes: {old.run_id} ({why})")):
        assert carry_out(["show", "record", one.run_id, "--results", str(tmp_path)]) == 0
        assert said in capsys.readouterr().out


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
