"""Locks between processes, which the system frees when their holder ends, and waiting for what another job makes."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock, Timeout

from openbench.errors import BusyError
from openbench.say import Say


@contextmanager
def only_one(path: Path, what: str, say: Say) -> Iterator[None]:
    """Hold a lock within the block; say so before waiting for another process that holds it.

    Args:
        path: of the lock's file, which stays.
        what: the other one makes.
        say: receives the line.

    Raises:
        BusyError: another process holds it, within `leaving`.
        OSError: the folder is missing or cannot be written.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        wait_for(what, say)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def held(path: Path) -> bool:
    """Return whether a living process holds the lock of a path; it is taken for a moment if it is free."""
    try:
        if path.exists():
            with FileLock(path, timeout=0):
                pass
    except Timeout:
        return True
    except OSError:
        return False
    return False


_leaving: ContextVar[bool] = ContextVar("leaving", default=False)


@contextmanager
def leaving() -> Iterator[None]:
    """Have a job that would wait for what another one makes end within the block, so that its place is used."""
    before = _leaving.set(True)
    try:
        yield
    finally:
        _leaving.reset(before)


def wait_for(what: str, say: Say) -> None:
    """Say that another job is waited for.

    Args:
        what: it makes.
        say: receives the line.

    Raises:
        BusyError: within `leaving`.
    """
    if _leaving.get():
        raise BusyError(what)
    say(f"{what}, waiting")
