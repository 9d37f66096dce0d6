"""What a record says of the making of its numbers, and what is said when it is shown instead of being computed."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.engine import provenance
from openbench.engine.provenance import Clock, record_notes, reused_outcome, score_warnings
from openbench.results.records.store import RecordStore
from tests.results.records import make_record

MADE = {"openbench": "0.1.0", "git_sha": "abcdef0123456789", "utc": "2026-01-02T03:04:05+00:00"}


def record(**provenance) -> ResultRecord:
    return make_record(provenance=MADE | provenance)


BEFORE, AFTER = (
    "openbench 0.1.0, commit abc, 2020-01-01T00:00:00+00:00",
    "openbench 0.1.0, commit abc, 2999-01-01T00:00:00+00:00",
)


def test_a_reused_record_is_one_short_line_and_its_commit_is_logged_for_debugging(tmp_path, caplog):
    made = record(reused={"features": BEFORE, "weights": BEFORE})
    with caplog.at_level("DEBUG", "openbench"):
        found = reused_outcome(made, Path("x"), RecordStore(tmp_path))
    assert (found.status, found.warnings) == ("skipped", ())
    assert found.notes == ("reused: nothing was computed (runtime.on_existing=verify computes again and compares)",)
    assert "openbench 0.1.0, commit abcdef012345, 2026-01-02T03:04:05+00:00" in caplog.text


@pytest.mark.parametrize(
    ("before", "note"),
    [
        ({"weights": BEFORE, "features": BEFORE}, ("reused weights and features of an earlier run",)),
        ({"weights": BEFORE, "features": AFTER}, ("reused weights of an earlier run",)),
        ({"features": "an earlier version"}, ("reused features of an earlier run",)),
        ({"features": AFTER}, ()),  # made for another method of this process
        ({}, ()),
    ],
)
def test_reused_features_are_named_in_one_line_unless_this_process_made_them(tmp_path, caplog, before, note):
    with caplog.at_level("DEBUG", "openbench"):
        assert record_notes(record(reused=before), RecordStore(tmp_path)) == note
    assert caplog.text.count("commit abc") == sum("commit" in maker for maker in before.values())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            {"sources": {"mine": "1" * 64, "helper": "2" * 64}},
            "made from sources that are not openbench's: mine, helper",
        ),
        ({"uncommitted": {"openbench/a.py": "1" * 64}}, "made from uncommitted changes in openbench/a.py: reused only"),
        ({"sources": {"__main__.Mine": "unknown 12"}}, "__main__.Mine has no file to read, so its results are never"),
    ],
)
def test_code_that_is_not_shipped_is_named_above_the_table(tmp_path, made, said):
    assert reused_outcome(record(**made), Path("x"), RecordStore(tmp_path)).notes[1].startswith(said)


def test_time_counts_for_the_innermost_stage_alone_until_its_error(monkeypatch):
    # Stands still until it is told to pass: on a busy machine the real one passes anyhow.
    clock, time = Clock(), SimpleNamespace(now=100.0, perf_counter=lambda: time.now)
    monkeypatch.setattr(provenance, "time", time)
    with clock.stage("outer"):
        time.now += 2
        with clock.stage("inner"):
            time.now += 6
        time.now += 3
        with suppress(ValueError), clock.stage("inner"):
            time.now += 1
            raise ValueError
    time.now += 5
    assert clock.seconds == {"outer": 5, "inner": 7}
    assert clock.peak_mib["inner"] > 0


def split(scores, role=Role.FAR, name="cars"):
    n = len(scores)
    return SetScores.of_split(name, role, np.array(scores, dtype=np.float32), np.zeros(n, int), np.zeros(n, int))


@pytest.mark.parametrize("value", [0.25, np.inf])
def test_equal_scores_of_all_sets_are_said_once(value):
    (said,) = score_warnings("method 'msp'", [split([value] * 3), split([value] * 2)])
    assert f"method 'msp' gives all 5 images of all sets the score {value:g}" in said
    assert "AUROC is 50" in said


def test_equal_scores_of_one_set_are_said_with_its_name():
    assert score_warnings("method 'msp'", [split([0, 1]), split([1, 2, 1]), split([5])]) == []
    (said,) = score_warnings("method 'msp'", [split([1, 2]), split([3, 3, 3], Role.NEAR, "fish")])
    assert "all 3 images of near fish the score 3" in said


def test_infinite_scores_are_counted():
    (said,) = score_warnings("method 'knn'", [split([1, 2]), split([3, np.inf, -np.inf])])
    assert "method 'knn': 2 of 3 scores of far cars are infinite" in said
