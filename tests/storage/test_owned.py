"""Folders of processes that were killed are deleted by the next one; those of living processes are not."""

import os
import shutil
import signal
from pathlib import Path

from openbench.storage import trust
from openbench.storage.owned import OWNER, delete_ownerless, owned
from openbench.storage.whole import OLD


def killed_in(folder: Path) -> None:
    """Kill a process while the folder is its own."""
    child = os.fork()
    if child == 0:
        with owned(folder):
            (folder / "note").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_folder_of_a_killed_process_is_deleted(tmp_path):
    killed_in(tmp_path / "a")
    assert (tmp_path / "a" / "note").exists()
    delete_ownerless(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_locks_do_not_hold_a_folder_that_has_not_changed_for_a_day_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "_doubts", {os.stat(tmp_path).st_dev: "they are within one machine"})
    killed_in(tmp_path / "a")
    (tmp_path / "a" / "job").mkdir()
    (tmp_path / "a" / "job" / "log").touch()
    for name in ("note", ".owner", "job", "job/log"):
        long_ago = (tmp_path / "a" / name).stat().st_mtime - 2 * OLD
        delete_ownerless(tmp_path)
        assert (tmp_path / "a" / "note").exists()
        os.utime(tmp_path / "a" / name, (long_ago, long_ago))
    delete_ownerless(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_nothing_is_deleted_after_a_day(tmp_path):
    for name in ("empty", "begun"):  # killed before its owner's file was there, and before anything was in it
        (tmp_path / name).mkdir()
    (tmp_path / "begun" / OWNER).touch()
    long_ago = (tmp_path / "begun").stat().st_mtime - 2 * OLD
    for path in (tmp_path / "begun" / OWNER, tmp_path / "begun", tmp_path / "empty"):
        delete_ownerless(tmp_path)
        assert {p.name for p in tmp_path.iterdir()} == {"empty", "begun"}
        os.utime(path, (long_ago, long_ago))
        if path.name == "begun":
            delete_ownerless(tmp_path)
            assert [p.name for p in tmp_path.iterdir()] == ["empty"]
            (tmp_path / "begun").mkdir()
    delete_ownerless(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["begun"]


def test_the_folders_above_are_made(tmp_path):
    with owned(tmp_path / "runs" / "a"):
        assert (tmp_path / "runs" / "a").is_dir()


def test_folders_of_the_living_and_of_those_that_ended_stay(tmp_path):
    with owned(tmp_path / "ended"):
        pass
    with owned(tmp_path / "living"):
        delete_ownerless(tmp_path)
        assert {p.name for p in tmp_path.iterdir()} == {"ended", "living"}


def test_a_folder_with_what_is_to_be_kept_stays(tmp_path):
    killed_in(tmp_path / "a")
    (tmp_path / "a" / "logs").mkdir()
    delete_ownerless(tmp_path, kept="logs")
    assert (tmp_path / "a").exists()


def test_a_parent_that_is_missing_is_fine(tmp_path):
    delete_ownerless(tmp_path / "none")


def test_what_cannot_be_opened_or_deleted_does_not_keep_the_rest(tmp_path, monkeypatch):
    (tmp_path / "a" / ".owner").mkdir(parents=True)  # nothing that a process of ours left
    for name in ("b", "c"):
        killed_in(tmp_path / name)
    unlink = os.unlink

    def refusing(path, **rest):
        if os.path.basename(path) == "note" and refused:
            raise PermissionError(refused.pop())
        unlink(path, **rest)

    refused = ["one of the two notes"]
    monkeypatch.setattr(os, "unlink", refusing)
    delete_ownerless(tmp_path)
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert left in (["a", "a/.owner", "b", "b/note"], ["a", "a/.owner", "c", "c/note"])


def test_a_folder_may_be_deleted_by_its_owner(tmp_path):
    with owned(tmp_path / "a"):
        shutil.rmtree(tmp_path / "a")
    assert not (tmp_path / "a").exists()
