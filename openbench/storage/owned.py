"""Folders that belong to one process; if it is killed, the next process deletes them."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from openbench.storage import trust
from openbench.storage.whole import OLD, lock, open_files_stay

OWNER = ".owner"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a folder until the block ends; what is in it then stays.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open(folder / OWNER, "wb") as stream:
            lock(stream)
            stream.write(b"locked")  # others leave the folder alone while this file is empty
            stream.flush()
            try:
                yield
            finally:
                with suppress(OSError):
                    stream.truncate(0)
    finally:
        with suppress(OSError):
            (folder / OWNER).unlink()


def delete_ownerless(parent: Path, kept: str = "") -> None:
    """Delete the folders below `parent` whose process was killed before its block ended.

    Where locks do not tell, a folder in which nothing has changed for a day has no process any more. So it is with a
    folder that holds nothing: its process was killed before it could say that the folder is its own.

    Args:
        parent: may be missing.
        kept: a folder that holds a file or folder of this name is left alone.
    """
    for owner in parent.glob(f"*/{OWNER}"):
        with suppress(OSError):
            with open(owner, "rb+") as stream:
                if not stream.read() or not _left(stream, owner) or (kept and (owner.parent / kept).exists()):
                    continue
                shutil.rmtree(owner.parent, ignore_errors=True)
            if open_files_stay():  # the owner's file has stayed, and its folder
                owner.unlink()
                owner.parent.rmdir()
    for folder in parent.glob("*"):
        with suppress(OSError):
            inside = list(folder.iterdir())
            if all(path.name == OWNER and not path.read_bytes() for path in inside) and _unchanged(folder, *inside):
                for path in inside:
                    path.unlink()
                folder.rmdir()


def _left(stream: BinaryIO, owner: Path) -> bool:
    """Whether the process that owns a folder has ended, by the file that says so."""
    if lock(stream):
        return True
    if not trust.doubt(owner):
        return False
    return _unchanged(*owner.parent.rglob("*"))


def _unchanged(*paths: Path) -> bool:
    """Whether nothing has changed for a day."""
    return time.time() - max(path.stat().st_mtime for path in paths) > OLD
