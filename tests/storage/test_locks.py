"""Locks where the file system's hold, where it refuses them, and where it grants them to everybody."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path

import pytest
from filelock import Timeout

from openbench.storage import locks, trust
from openbench.storage.locks import Lease, Lock, held, lease_of
from openbench.storage.whole import replacing


def refusing(number):
    """An flock of a file system that has none."""

    def refuse(stream, operation):
        raise OSError(number, os.strerror(number))

    return refuse


BROKEN = {
    "refused": refusing(errno.ENOLCK),
    "unknown": refusing(errno.ENOSYS),
    "granted to all": lambda stream, operation: None,
}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """A process that has not used a lock yet."""
    monkeypatch.setattr(trust, "_doubts", {})
    monkeypatch.setattr(locks, "_told", set())


@pytest.fixture(params=list(BROKEN))
def broken(request, monkeypatch):
    """A file system whose locks do not work."""
    monkeypatch.setattr(fcntl, "flock", BROKEN[request.param])


def is_free(path: Path) -> bool:
    """Whether another holder could take the lock now."""
    other = Lock(path)
    try:
        other.acquire(timeout=0)
    except Timeout:
        return False
    other.release()
    return True


def test_where_locks_work_no_other_file_is_made(tmp_path):
    with Lock(tmp_path / "a"):
        assert not is_free(tmp_path / "a")
        assert held(tmp_path / "a")
        assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert is_free(tmp_path / "a")
    assert not held(tmp_path / "a")


def test_a_lock_that_is_given_back_is_free_although_a_forked_process_lives_on(tmp_path):
    lock = Lock(tmp_path / "a")
    lock.acquire()
    waits, goes_on = os.pipe()
    child = os.fork()
    if child == 0:  # as a worker that reads images
        os.close(goes_on)
        os.read(waits, 1)
        os._exit(0)
    lock.release()
    assert is_free(tmp_path / "a")
    os.close(goes_on)
    os.waitpid(child, 0)
    os.close(waits)


def test_on_a_system_without_such_locks_a_killed_holder_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "fcntl", None)  # as on Windows
    monkeypatch.setattr(trust, "HAS_LOCKS", False)
    with Lock(tmp_path / "a"):
        assert held(tmp_path / "a")
    (tmp_path / "a").touch()  # what a process that was killed leaves
    assert not held(tmp_path / "a")
    assert not held(tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_one_at_a_time_holds_a_lock_where_the_file_system_has_none_that_work(tmp_path, broken):
    with Lock(tmp_path / "a"):
        assert not is_free(tmp_path / "a")
        assert held(tmp_path / "a")
        assert is_free(tmp_path / "b")
    assert is_free(tmp_path / "a")
    assert not held(tmp_path / "a")
    assert {file.name for file in tmp_path.iterdir()} == {"a", "b"}


def test_locks_that_do_not_work_are_told_once(tmp_path, broken):
    said: list[str] = []
    for name in "ab":
        with Lock(tmp_path / name, said.append):
            pass
    [line] = said
    assert f"file locks do not work in '{tmp_path}'" in line


def test_a_lock_that_is_held_when_it_is_first_tried_counts_as_working(tmp_path):
    with open(tmp_path / "a", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not is_free(tmp_path / "a")
    assert is_free(tmp_path / "a")
    assert not trust.doubt(tmp_path)


def test_a_network_mount_whose_locks_stay_within_a_machine_is_not_trusted(tmp_path, monkeypatch):
    device = os.stat(tmp_path).st_dev
    line = (
        f"36 35 {os.major(device)}:{os.minor(device)} / {tmp_path} rw,noatime shared:1 - nfs server:/x rw,vers=3,nolock"
    )
    (tmp_path / "mounts").write_text(f"1 1 0:1 / / rw - ext4 /dev/a rw\n{line}\n")
    monkeypatch.setattr(trust, "MOUNTS", tmp_path / "mounts")
    with Lock(tmp_path / "a"):
        assert "nolock" in (trust.doubt(tmp_path) or "")
        assert lease_of(tmp_path / "a").exists()


def test_the_lease_of_a_killed_process_of_this_machine_is_taken_over_at_once(tmp_path, broken):
    child = os.fork()
    if child == 0:
        Lock(tmp_path / "a").acquire()
        os._exit(0)
    os.waitpid(child, 0)
    assert lease_of(tmp_path / "a").exists()
    assert not held(tmp_path / "a")
    assert is_free(tmp_path / "a")


@pytest.mark.parametrize("age", [0, 2 * locks.STALE])
def test_the_lease_of_another_machine_is_taken_over_when_it_is_not_renewed(tmp_path, broken, age):
    lease = lease_of(tmp_path / "a")
    lease.write_text(json.dumps({"token": "x", "host": "another", "pid": os.getpid()}))
    now = lease.stat().st_mtime
    os.utime(lease, (now - age, now - age))
    assert is_free(tmp_path / "a") == bool(age)


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="the system names no start of its own")
def test_a_lease_names_the_start_of_the_machine_after_which_process_numbers_are_given_again(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK))
    with Lock(tmp_path / "a"):
        host = json.loads(lease_of(tmp_path / "a").read_text())["host"]
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in host.split(" ")


@pytest.mark.parametrize("number", [1 << 70, -1])
def test_a_lease_with_a_number_that_no_process_has_ends_in_no_traceback(tmp_path, broken, number):
    lease = lease_of(tmp_path / "a")
    lease.write_text(json.dumps({"token": "x", "host": locks._host(), "pid": number}))
    os.utime(lease, (0, 0))
    assert is_free(tmp_path / "a")


def test_an_abandoned_lease_that_another_takes_over_meanwhile_is_left_to_it(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_text(json.dumps({"token": "x", "host": "another", "pid": 1}))
    os.utime(path, (0, 0))
    late, first = Lease(path), Lease(path)
    judged = Lease._abandoned

    def overtaken(self, *arguments):
        found = judged(self, *arguments)
        assert self is not late or first.take()  # between the look and the removal
        return found

    monkeypatch.setattr(Lease, "_abandoned", overtaken)
    assert not late.take()
    assert first._holder()["token"] == first._token
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_of_two_that_find_an_abandoned_lease_at_once_nothing_is_left_aside(tmp_path, monkeypatch):
    (tmp_path / "a").write_text(json.dumps({"token": "next"}))
    lease, link = Lease(tmp_path / "a"), os.link

    def third(aside, path):  # takes the lease while that of the second is aside
        Path(path).write_text(json.dumps({"token": "third"}))
        link(aside, path)

    monkeypatch.setattr(os, "link", third)
    monkeypatch.setattr(lease, "_holder", lambda: {"token": "first"})  # what was there a moment before
    lease._remove({"token": "first"})
    assert [(file.name, json.loads(file.read_text())) for file in tmp_path.iterdir()] == [("a", {"token": "third"})]


def test_a_lease_is_renewed_while_it_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "RENEWED", 0.01)
    lease = Lease(tmp_path / "a")
    assert lease.take()
    os.utime(tmp_path / "a", (0, 0))
    deadline = time.monotonic() + 600
    while not os.stat(tmp_path / "a").st_mtime:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert lease.held()
    lease.release()
    assert not (tmp_path / "a").exists()


def test_who_lost_a_lease_does_not_take_away_that_of_the_next(tmp_path):
    lease = Lease(tmp_path / "a")
    assert lease.take()
    (tmp_path / "a").write_text(json.dumps({"token": "next"}))
    lease.release()
    assert (tmp_path / "a").exists()


def test_nobody_deletes_what_a_living_process_writes_where_locks_do_not_work(tmp_path, broken):
    with replacing(tmp_path / "a") as first:
        first.write(b"first")
        with replacing(tmp_path / "a") as second:
            second.write(b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_what_a_killed_process_left_is_deleted_a_day_later_where_locks_do_not_work(tmp_path, broken):
    left = tmp_path / ".a.0123.tmp"
    left.write_bytes(b"")
    os.utime(left, (0, 0))
    with replacing(tmp_path / "a"):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
