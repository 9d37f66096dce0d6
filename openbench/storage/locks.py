"""Locks between processes on any file system: the system's where they hold, else leases that their holder renews.

What a lock guards is written so that its loss costs time only: files get their names whole, and are read with digests.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from filelock import FileLock, Timeout

from openbench.errors import BusyError
from openbench.storage import trust

RENEWED, STALE = 15.0, 120.0  # seconds between two renewals of a lease, and after which an old one counts no more
_POLL = 0.1  # seconds between two tries


class Lock:
    """Held by one process at a time; that of a process that was killed is free again, at once or after two minutes.

    Args:
        path: of its file, which stays.
        say: receives a line, once for each reason, where the file system's own locks are not to be trusted.
    """

    def __init__(self, path: Path, say: Callable[[str], None] | None = None) -> None:
        self.path, self._say = path, say
        self._lease = Lease(lease_of(path))
        self._stream: BinaryIO | None = None
        self._windows = None if trust.HAS_LOCKS else FileLock(path)

    def acquire(self, timeout: float = -1) -> None:
        """Take the lock.

        Args:
            timeout: seconds to wait; −1: as long as it takes.

        Raises:
            Timeout: another process still holds it.
            OSError: the folder is missing or cannot be written.
        """
        if self._windows is not None:
            self._windows.acquire(timeout=timeout)
            return
        end = time.monotonic() + timeout
        while not (self._granted() or self._leased()):
            if timeout >= 0 and time.monotonic() >= end:
                raise Timeout(str(self.path))
            time.sleep(_POLL)

    def release(self) -> None:
        """Give the lock back."""
        if self._windows is not None:
            self._windows.release()
        self._lease.release()
        if self._stream is not None:
            trust.give_back(self._stream)
            self._stream.close()
            self._stream = None

    def __enter__(self) -> "Lock":
        """Take the lock, however long that takes."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the lock back."""
        self.release()

    def _granted(self) -> bool:
        """Try to take the system's lock."""
        stream: BinaryIO = open(self.path, "a+b")  # noqa: SIM115 — it is locked as long as it is open
        if trust.granted(stream) and os.fstat(stream.fileno()).st_nlink:  # else it was deleted meanwhile
            self._stream = stream
            return True
        stream.close()
        return False

    def _leased(self) -> bool:
        """Try to take the lease, where the system's lock is not to be trusted."""
        if not (why := trust.doubt(self.path)):
            return False
        if self._say is not None and why not in _told:
            _told.add(why)
            self._say(warning(self.path.parent, why))
        return self._lease.take()


@contextmanager
def taken(path: Path) -> Iterator[None]:
    """Hold a lock within the block, without waiting for it.

    Args:
        path: of its file.

    Raises:
        Timeout, OSError: as `Lock.acquire` does.
    """
    lock = Lock(path)
    lock.acquire(timeout=0)
    try:
        yield
    finally:
        lock.release()


_told: set[str] = set()


def warning(place: Path, why: str) -> str:
    """Return what to tell the user of a place whose locks are not to be trusted.

    Args:
        place: the folder.
        why: as `trust` says.
    """
    return (
        f"WARNING: file locks do not work in '{place}' — {why} — jobs mark what they work on with files that they "
        f"renew instead; what a killed job of another machine worked on is taken over after {STALE:.0f} s"
    )


def held(path: Path) -> bool:
    """Return whether a living process holds the lock of a path; it is taken for a moment if it is free.

    Args:
        path: as given to `Lock`.
    """
    if not trust.HAS_LOCKS:
        return path.exists() and _refused(path)
    try:
        with open(path, "rb+") as stream:
            return Lease(lease_of(path)).held() or not (trust.granted(stream) or trust.doubt(path))
    except OSError:
        return False


def _refused(path: Path) -> bool:
    """Whether somebody holds a lock, on Windows."""
    try:
        with FileLock(path, timeout=0):
            return False
    except Timeout:
        return True


def lease_of(path: Path) -> Path:
    """Return the file of the lease that stands in for the lock of a path."""
    return path.with_name(f"{path.name}.lease")


_leaving: ContextVar[bool] = ContextVar("leaving", default=False)


@contextmanager
def leaving() -> Iterator[None]:
    """Have a job that would wait for what another one makes end within the block, so that its place is used."""
    before = _leaving.set(True)
    try:
        yield
    finally:
        _leaving.reset(before)


def wait_for(what: str, say: Callable[[str], None]) -> None:
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


class Lease:
    """A file that exists while somebody works, and whose time its holder renews; it needs no locks.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._token = ""
        self._ended = threading.Event()

    def take(self) -> bool:
        """Take the lease unless somebody holds it, and renew it from now on; return whether that worked."""
        if not self._created():
            return False
        self._ended = threading.Event()
        threading.Thread(target=self._renew, args=(self._token, self._ended), daemon=True).start()
        return True

    def release(self) -> None:
        """Give the lease back, unless somebody else has taken it over meanwhile."""
        if not self._token:
            return
        self._ended.set()
        if self._holder().get("token") == self._token:
            self.path.unlink(missing_ok=True)
        self._token = ""

    def held(self) -> bool:
        """Whether somebody holds it who lives."""
        return self.path.exists() and not self._abandoned(time.time())

    def _created(self) -> bool:
        """Create the file, which one process can at a time; first remove that of a process that has ended."""
        token = secrets.token_hex(8)
        holder = {"token": token, "host": _host(), "pid": os.getpid()}
        fresh = self.path.with_name(f".{self.path.name}.{token}.tmp")
        try:
            fresh.write_bytes(json.dumps(holder).encode())
            found = self._holder()  # before the judgement: a lease that is taken over since then is another one
            if self._abandoned(fresh.stat().st_mtime):  # both times are those of the file system's clock
                self._remove(found)
            os.link(fresh, self.path)
        except FileExistsError:
            return False
        finally:
            fresh.unlink(missing_ok=True)
        self._token = token
        return True

    def _holder(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        return {}

    def _abandoned(self, now: float) -> bool:
        """Whether the holder was killed: on this machine its process says so, elsewhere the time since a renewal."""
        holder = self._holder()
        if holder.get("host") == _host() and isinstance(pid := holder.get("pid"), int):
            with suppress(OverflowError):  # no process has such a number: the file was not written by a lease
                if not psutil.pid_exists(pid):
                    return True
        with suppress(OSError):
            return now - self.path.stat().st_mtime > STALE
        return False

    def _remove(self, abandoned: dict[str, Any]) -> None:
        """Remove the lease of one who was killed, but not that of somebody who took it over meanwhile."""
        aside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        with suppress(OSError):
            if self._holder() != abandoned:
                return
            os.rename(self.path, aside)
            try:
                if Lease(aside)._holder() != abandoned:  # taken over since the line above
                    os.link(aside, self.path)
            finally:
                aside.unlink()

    def _renew(self, token: str, ended: threading.Event) -> None:
        while not ended.wait(RENEWED):
            if self._holder().get("token") != token:
                return
            with suppress(OSError):
                os.utime(self.path)


def _host() -> str:
    """What tells this machine, since its last start, from others, and a container from its neighbours."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
            os.readlink("/proc/self/ns/pid"),
        ]
    return " ".join(parts)
