"""What is said when a record is shown instead of being computed."""

from pathlib import Path

import pytest

from openbench.core.record import ResultRecord
from openbench.engine.provenance import record_notes, reused_outcome
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
