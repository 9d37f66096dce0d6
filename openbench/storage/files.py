"""Atomic file writes, reads of small files with a bound on their size, and locks between processes."""

import errno
import glob
import io
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

logger = logging.getLogger(__name__)

_SUFFIX = ".tmp"
_OLD = 86_400.0  # seconds after which a file of a writer that was killed is deleted


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a mixture.

    Args:
        path: the file; a missing folder is created.
        content: all of it.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old content is then still there.
    """
    with replacing(path) as stream:
        stream.write(content)


def replacing(path: Path) -> AbstractContextManager[BinaryIO]:
    """Return a stream to a temporary file, which replaces `path` when the block ends without an exception.

    Args:
        path: the file; a missing folder is created.

    Raises:
        OSError: as for `write_whole`.
    """
    return _temporary(path, os.replace)


def creating(path: Path) -> AbstractContextManager[BinaryIO]:
    """Return a stream to a temporary file, which becomes the new file `path` when the block ends without an exception.

    Args:
        path: a file that does not exist; a missing folder is created.

    Raises:
        FileExistsError: it exists, and is not changed.
        OSError: as for `write_whole`, or the file system has no hard links.
    """
    return _temporary(path, os.link)


@contextmanager
def _temporary(path: Path, rename: Callable[[Path, Path], None]) -> Iterator[BinaryIO]:
    """A stream to a temporary file, which is renamed to `path` if the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    delete_old(path.parent, f".{glob.escape(path.name)}.*{_SUFFIX}")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_SUFFIX}")
    try:
        with open(temporary, "x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        rename(temporary, path)
    except OSError as error:
        if error.filename is None:  # raised by a write: the system does not name the file
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def delete_old(folder: Path, pattern: str) -> None:
    """Delete temporary files and folders of killed processes: those of a pattern that have not changed for a day.

    Args:
        folder: may be missing.
        pattern: of their names.
    """
    for leftover in folder.glob(pattern):
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _OLD:
                if leftover.is_dir() and not leftover.is_symlink():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink()


@contextmanager
def output(path: Path) -> Iterator[TextIO]:
    """Yield a stream of UTF-8 text to a file that a user named; the file is replaced as a whole.

    A device or a pipe (`/dev/stdout`) is written to directly, and a link is followed.

    Args:
        path: its folder must be there.

    Raises:
        OSError: as for `write_whole`, or its folder is missing.
    """
    if path.exists() and not path.is_file():  # before resolving: an open pipe resolves to a name that does not exist
        with open(path, "w", encoding="utf-8", newline="") as text:
            yield text
        return
    target = path.resolve()
    os.stat(target.parent)
    with replacing(target) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        yield text
        text.flush()
        text.detach()


def forbidden(error: BaseException | None) -> bool:
    """Return whether a file could not be written for lack of permission; a full disk does not count."""
    return isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file; pipes, devices and files that would fill the memory are refused.

    Args:
        path: the file, or a link to it.
        most: the largest size in bytes that is read.

    Raises:
        OSError: it cannot be read, is a pipe, a device or a folder, or is larger.
    """
    with open(str(path), "rb", opener=_open_at_once) as stream:  # this refuses folders
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "found a pipe or a device, not a regular file", str(path))
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"found more than {most:,} bytes", str(path))
    return content


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a pipe otherwise waits for somebody to write to it. Windows lacks the flag."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold a lock within the block; waiting for another process is logged.

    Args:
        path: the lock's file, which is not deleted.
        what: what the other process computes, for the log.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    from filelock import FileLock, Timeout  # takes 20 ms, and few commands need it

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info(f"{what}, waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
