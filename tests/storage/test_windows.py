"""Where open files can be neither renamed nor deleted, files still appear whole, and what is left is cleaned up."""

import os

import pytest

from openbench.storage import whole
from openbench.storage.owned import delete_ownerless, owned
from openbench.storage.whole import creating, delete_leftovers, replacing, write_whole

from ..windows import pretend  # noqa: TID252 — the tests are no package


@pytest.fixture(autouse=True)
def windows(monkeypatch):
    pretend(monkeypatch)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def aged(path, content=b"half"):
    path.write_bytes(content)
    os.utime(path, (0, 0))


def test_content_replaces_what_was_there(tmp_path):
    write_whole(tmp_path / "file", b"old")
    write_whole(tmp_path / "file", b"new")
    with creating(tmp_path / "another") as stream:
        stream.write(b"first")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["another", "file"]


def test_a_moment_is_waited_for_a_reader(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", b"old")
    with open(tmp_path / "file", "rb") as reader:
        monkeypatch.setattr(whole.time, "sleep", lambda pause: reader.close())
        write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_reader_that_does_not_leave_is_an_error(tmp_path, monkeypatch):
    write_whole(tmp_path / "file", b"old")
    pauses = []
    monkeypatch.setattr(whole.time, "sleep", pauses.append)
    with open(tmp_path / "file", "rb"), pytest.raises(PermissionError):
        write_whole(tmp_path / "file", b"new")
    assert 1 < sum(pauses) < 2
    assert names(tmp_path) == ["file"]


def test_what_killed_writers_left_is_deleted_and_what_is_held_or_new_is_not(tmp_path):
    aged(tmp_path / ".file.1.tmp")
    aged(tmp_path / ".probe-dead")
    (tmp_path / ".file.2.tmp").write_bytes(b"closed just now, about to get its name")
    with replacing(tmp_path / "other") as stream:
        stream.write(b"half")
        stream.flush()
        (held,) = tmp_path.glob(".other.*")
        os.utime(held, (0, 0))
        write_whole(tmp_path / "file", b"whole")
        whole.delete_temporary(tmp_path / "other")
        delete_leftovers(tmp_path, ".probe")
        assert names(tmp_path) == sorted([".file.2.tmp", held.name, "file"])
    assert names(tmp_path) == [".file.2.tmp", "file", "other"]


def test_a_locked_file_can_be_read(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    with open(tmp_path / "file", "rb+") as first, open(tmp_path / "file", "rb+") as second:
        assert second.read(3) == b"con"
        assert whole.lock(first)
        assert not whole.lock(second)
        assert second.read() == b"tent"


def test_a_folder_stays_with_its_owner_and_after_it_and_goes_with_a_killed_one(tmp_path):
    with owned(tmp_path / "ended"):
        (tmp_path / "ended" / "note").touch()
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".owner").write_bytes(b"locked")
    (tmp_path / "killed" / "note").touch()
    with owned(tmp_path / "living"):
        delete_ownerless(tmp_path)
        assert names(tmp_path) == ["ended", "living"]
    assert names(tmp_path / "ended") == ["note"]
    assert names(tmp_path / "living") == []
