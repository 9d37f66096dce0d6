"""What is said when a record is shown instead of being computed."""

from pathlib import Path

import pytest

from openbench.core.record import ResultRecord
from openbench.engine.provenance import reused
from openbench.results.records.store import RecordStore

MADE = {"openbench": "0.1.0", "git_sha": "abcdef0123456789", "utc": "2026-01-02T03:04:05+00:00"}


def record(**provenance) -> ResultRecord:
    benchmark, backbone, method = ({"name": name} for name in ("toy", "tiny", "mine"))
    return ResultRecord("1" * 16, {}, benchmark, backbone, method, {}, [], {}, "", {}, MADE | provenance)


def test_a_record_that_is_reused_is_said_to_be_with_who_made_it_and_when(tmp_path):
    found = reused(record(), Path("x"), RecordStore(tmp_path))
    assert (found.status, found.warnings) == ("skipped", ())
    assert found.notes == (
        "reused: nothing was computed — made by openbench 0.1.0, commit abcdef012345, 2026-01-02T03:04:05+00:00 — to "
        "compute it again and compare, add runtime.on_existing=verify",
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            {"sources": {"mine": "1" * 64, "helper": "2" * 64}},
            "made from sources that are not openbench's: mine, helper",
        ),
        (
            {"uncommitted": {"openbench/methods/knn.py": "1" * 64}},
            "made from uncommitted changes in openbench/methods/knn.py: reused only by the same sources",
        ),
        (
            {"sources": {"__main__.Mine": "unknown 12"}},
            "__main__.Mine has no file to read: what it makes is never reused",
        ),
    ],
)
def test_code_that_is_not_shipped_is_named_above_the_table(tmp_path, made, said):
    assert reused(record(**made), Path("x"), RecordStore(tmp_path)).notes[1:] == (said,)
