"""What is said when a record is shown instead of being computed."""

import importlib
import sys
from pathlib import Path

import pytest

from openbench.core.record import ResultRecord
from openbench.core.source import foreign_sources
from openbench.engine.reuse import METHOD_SOURCE, reused
from openbench.methods.msp import MSP

SOURCE = "from openbench.methods.msp import MSP\n\n\nclass Mine(MSP):\n    version = 4\n"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "edited_in_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("edited_in_test").Mine()
    del sys.modules["edited_in_test"]


def record(**provenance) -> ResultRecord:
    made = {"openbench": "0.1.0", "git_sha": "abcdef0123456789", "utc": "2026-01-02T03:04:05+00:00", **provenance}
    return ResultRecord("1" * 16, {}, {}, {}, {"name": "mine"}, {}, [], {}, "", {}, made)


def test_a_record_that_is_reused_is_said_to_be_with_who_made_it_and_when():
    found = reused(record(), Path("x"), MSP())
    assert (found.status, found.warnings) == ("skipped", ())
    assert found.notes == (
        "reused: nothing was computed — made by openbench 0.1.0, commit abcdef012345, 2026-01-02T03:04:05+00:00 — to "
        "compute it again and compare, add runtime.on_existing=verify",
    )


def test_a_method_of_ones_own_that_was_edited_since_is_warned_of_with_what_to_write(mine, tmp_path):
    old = record(**{METHOD_SOURCE: foreign_sources(mine)})
    (tmp_path / "edited_in_test.py").write_text(SOURCE + "# better\n")
    (warning,) = reused(old, Path("x"), mine).warnings
    assert warning.startswith("WARNING: edited_in_test.py has changed since this record was made: the numbers below")
    assert "write `version: ClassVar[int] = 5` in class Mine and run again" in warning
    assert "add runtime.on_existing=verify" in warning


def test_a_method_of_ones_own_that_is_as_it_was_is_said_to_be(mine):
    found = reused(record(**{METHOD_SOURCE: foreign_sources(mine)}), Path("x"), mine)
    assert found.warnings == ()
    assert "edited_in_test.py is as it was; files that it imports are not looked at" in found.notes[1]


def test_a_record_without_the_source_says_that_edits_are_not_noticed(mine):
    found = reused(record(), Path("x"), mine)
    assert found.warnings == ()
    assert "edits since then are not noticed — after an edit, write `version: ClassVar[int] = 5`" in found.notes[1]
