"""What is said when a record is shown instead of being computed."""

from pathlib import Path

from openbench.core.record import ResultRecord
from openbench.engine.reuse import reused

MADE = {"openbench": "0.1.0", "git_sha": "abcdef0123456789", "utc": "2026-01-02T03:04:05+00:00"}


def record(**provenance) -> ResultRecord:
    return ResultRecord("1" * 16, {}, {}, {}, {"name": "mine"}, {}, [], {}, "", {}, MADE | provenance)


def test_a_record_that_is_reused_is_said_to_be_with_who_made_it_and_when():
    found = reused(record(), Path("x"))
    assert (found.status, found.warnings) == ("skipped", ())
    assert found.notes == (
        "reused: nothing was computed — made by openbench 0.1.0, commit abcdef012345, 2026-01-02T03:04:05+00:00 — to "
        "compute it again and compare, add runtime.on_existing=verify",
    )


def test_code_of_others_that_made_it_is_named():
    found = reused(record(sources={"mine": "1" * 64, "helper": "2" * 64}), Path("x"))
    assert found.notes[1] == "made from the same sources: mine, helper"
