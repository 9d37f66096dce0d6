"""Copies of a small process: the end of each is its own, and none is left. A wait that has no end fails the test."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from .forked import Forked, Small

FOR_EVER = 600.0


def sleep_and_say(seconds: float) -> None:
    """Say something after a while."""
    time.sleep(seconds)
    print("awake", flush=True)


@pytest.fixture
def template() -> Iterator[Small]:
    found = Small()
    yield found
    found.close()


def test_the_end_of_a_copy_is_told_while_another_runs(template):
    first, second = template.copy(partial(sleep_and_say, 0.0)), template.copy(partial(time.sleep, FOR_EVER))
    assert (first.text(), first.ended()) == ("awake\n", 1)
    assert select.select([second.status], [], [], 0)[0] == []
    os.kill(second.pid, signal.SIGKILL)
    assert (second.text(), second.ended()) == ("", -signal.SIGKILL)


def test_copies_that_still_run_are_ended_with_the_template(template):
    copy = template.copy(partial(sleep_and_say, FOR_EVER))
    template.close()
    assert copy.text() == ""


def test_the_template_ends_while_a_process_is_left_that_was_forked_beside_it(template, tmp_path: Path):
    left = Forked(partial(time.sleep, FOR_EVER), tmp_path / "note")
    template.close()
    assert left.runs
    left.kill()
    left.ended()


def test_ctrl_c_leaves_the_template_to_the_one_that_asks_it(template):
    template.once(os.getpid)  # by now it has begun
    os.kill(template._process.pid, signal.SIGINT)
    copy = template.copy(partial(sleep_and_say, 0.0))
    assert (copy.text(), copy.ended()) == ("awake\n", 1)


def test_copies_find_these_tests_beside_another_package_of_the_name(tmp_path: Path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    template = Small()
    copy = template.copy(partial(sleep_and_say, 0.0))
    assert copy.text() == "awake\n"
    template.close()
