"""One process at a time holds a lock, and one that is killed holds none."""

import subprocess
import sys

import pytest
from filelock import FileLock, Timeout

from openbench.storage.locks import held, only_one

from ..logged import logged  # noqa: TID252 — the tests are no package

HOLDER = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path / "a"`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_lock_is_held_until_its_holder_is_killed(tmp_path, holder):
    assert held(tmp_path / "a")
    with pytest.raises(Timeout), FileLock(tmp_path / "a", timeout=0):
        pass
    holder.kill()
    holder.wait()
    assert not held(tmp_path / "a")
    with only_one(tmp_path / "a", "nobody"), logged() as said:
        assert held(tmp_path / "a")
        assert said == []


def test_who_waits_says_for_what(tmp_path, holder):
    with logged(lambda line: holder.kill()) as said, only_one(tmp_path / "a", "another job makes it"):
        assert said == ["another job makes it, waiting"]


def test_to_ask_for_a_lock_makes_no_file(tmp_path):
    assert not held(tmp_path / "b")
    assert list(tmp_path.iterdir()) == []
