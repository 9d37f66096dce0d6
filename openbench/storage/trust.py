"""Whether file locks of the operating system hold where a file lies: not every shared file system has ones that do."""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MOUNTS = Path("/proc/self/mountinfo")
# Refused because somebody else holds it, or because the call was interrupted: locks work.
_HELD = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EINTR)
# Mount options by which a network file system keeps locks within one machine, by the beginning of its type.
_WITHIN_ONE_MACHINE = {"nfs": {"nolock", "local_lock=all", "local_lock=flock"}, "lustre": {"localflock", "noflock"}}
HAS_LOCKS = fcntl is not None
_doubts: dict[int, str] = {}  # by device; an empty text where locks hold


def granted(stream: BinaryIO) -> bool:
    """Lock an open file of this process, and return whether nobody else can hold that lock too.

    The first lock on a device is tried a second time: file systems without locks of their own may grant all of them.

    Args:
        stream: open for writing.
    """
    if fcntl is None or doubt(Path(stream.name)):
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:
            note(Path(stream.name), f"the file system refuses them ({error.strerror or error})")
        return False
    return not doubtful(Path(stream.name))


def give_back(stream: BinaryIO) -> None:
    """Unlock an open file, also where a process that was forked from this one has it open too.

    Args:
        stream: as given to `granted`.
    """
    with suppress(OSError):  # closing it is left
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_UN)


def doubtful(path: Path) -> str:
    """Return why a lock that this process was just granted on a file says nothing; empty if it holds.

    Args:
        path: of the locked file.
    """
    known = doubt(path)
    if known is not None or fcntl is None:
        return known or ""
    try:
        with open(path, "rb+") as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return note(path, _within_one_machine(path))
    return note(path, "the file system grants one to two at a time")


def doubt(path: Path) -> str | None:
    """Return what is known of locks where a file lies: why not to trust them, empty if they hold, None if not known."""
    try:
        return _doubts.get(os.stat(path).st_dev)
    except OSError:
        return None


def note(path: Path, why: str) -> str:
    """Note for this process why locks where a file lies are not to be trusted, and return it."""
    with suppress(OSError):
        _doubts[os.stat(path).st_dev] = why
    return why


def _within_one_machine(path: Path) -> str:
    """Why other machines do not see a lock on a file, as its mount says."""
    try:
        device, mounts = os.stat(path).st_dev, MOUNTS.read_text(encoding="utf-8")
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest and fields.split()[2] == number:
            kind, _, options = rest.partition(" ")
            found = {option for text in (fields.split()[5], options.split()[-1]) for option in text.split(",")}
            for name, telling in _WITHIN_ONE_MACHINE.items():
                if kind.startswith(name) and (told := sorted(found & telling)):
                    return f"it is mounted with {told[0]}, so that other machines do not see them"
    return ""
