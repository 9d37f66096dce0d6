"""Folders of processes that were killed are deleted by the next one; those of living processes are not."""

import os
import signal
from pathlib import Path

from openbench.storage.owned import delete_ownerless, owned


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
