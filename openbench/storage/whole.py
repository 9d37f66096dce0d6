"""Files that appear whole or not at all, also when the writer is killed or the disk is full."""

import errno
import io
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from openbench.storage import trust

try:
    import msvcrt
except ImportError:  # not Windows
    msvcrt = None  # type: ignore[assignment]

_SUFFIX = ".tmp"
OLD = 86_400.0  # seconds after which what has not changed has no writer any more, where no lock tells
_LOCKED_BYTE = (1 << 31) - 2  # Windows keeps others from a locked byte: one behind the content, where `locking` reaches
_JUST_NOW = 60  # seconds; between a writer's last byte and the file's name lies less
_TRIES = 100  # names for a temporary file
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)  # seconds


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a mixture.

    Args:
        path: the file; its folder is made if it is missing.
        content: all of it.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old content is then still there.
    """
    with replacing(path) as stream:
        stream.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream; what was written to it replaces `path` when the block ends without an exception.

    The content is on the disk before it gets its name. Temporary files that killed writers left behind are deleted.

    Args:
        path: the file; its folder is made if it is missing.

    Raises:
        OSError: as for `write_whole`.
    """
    with _temporary(path) as (stream, temporary):
        yield stream
        _sync(stream)
        if open_files_stay():
            stream.close()
        _replace(temporary, path)


@contextmanager
def output(path: Path) -> Iterator[TextIO]:
    """Yield a stream of UTF-8 text for a file that a user named; the file appears whole or stays as it was.

    A device or a pipe (`/dev/stdout`) is written to as it is, and a link keeps pointing where it points.

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
    """Whether a file could not be written because this process may not write there; a full disk does not count."""
    return isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def creating(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream; what was written to it becomes the new file `path` when the block ends without an exception.

    Args:
        path: a file that does not exist; its folder is made if it is missing.

    Raises:
        FileExistsError: it exists, perhaps made by another process just now; it is not touched.
        OSError: as for `write_whole`, or the file system has no hard links.
    """
    with _temporary(path) as (stream, temporary):
        yield stream
        _sync(stream)
        os.link(temporary, path)
        _sync_folder(path.parent)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file beside `path`, locked while its writer lives and deleted when the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    delete_temporary(path)
    stream, temporary = _begun(path)
    try:
        with stream:
            yield stream, temporary
    except OSError as error:
        if error.filename is None:  # raised by a write: the system does not name the file
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def _begun(path: Path) -> tuple[BinaryIO, Path]:
    """A new file beside `path`, locked; another process may take one that is not locked yet for a killed writer's."""
    for left in reversed(range(_TRIES)):
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_SUFFIX}")
        stream: BinaryIO = open(temporary, "x+b")  # noqa: SIM115 — its writer closes it
        own = lock(stream) or open_files_stay() or bool(trust.doubt(temporary))
        if (own or not left) and temporary.exists():  # a lock that is refused every time is nobody's
            return stream, temporary
        stream.close()
        with suppress(OSError):
            temporary.unlink()
    raise OSError(errno.EAGAIN, "Its temporary file is deleted again and again", str(path))


def delete_temporary(path: Path) -> None:
    """Delete temporary files of `path` that no living process holds."""
    for leftover in path.parent.glob(f".{_escaped(path.name)}.*{_SUFFIX}"):
        _delete_unheld(leftover)


def delete_leftovers(folder: Path, prefix: str) -> None:
    """Delete a folder's files whose names begin with `prefix`, and their temporary files, unless a process holds them.

    Args:
        folder: may be missing.
        prefix: of files that their writer deletes right after making them.
    """
    for leftover in (*folder.glob(f"{_escaped(prefix)}*"), *folder.glob(f".{_escaped(prefix)}*{_SUFFIX}")):
        _delete_unheld(leftover)


def lock(stream: BinaryIO) -> bool:
    """Lock an open file until it is closed and return whether that worked; False where locks do not hold."""
    if msvcrt is None:
        return trust.granted(stream)
    try:
        _lock_byte(stream)
    except OSError:
        return False
    return True


def _left_over(stream: BinaryIO) -> bool:
    """Whether no living process writes a temporary file: it is not locked, or old where locks say nothing."""
    if lock(stream):
        return not _changes_hands(stream)
    return bool(trust.doubt(Path(stream.name))) and time.time() - os.fstat(stream.fileno()).st_mtime > OLD


def open_files_stay() -> bool:
    """Whether the system refuses to rename or delete a file while it is open, as Windows does."""
    return msvcrt is not None


def _lock_byte(stream: BinaryIO) -> None:
    at = stream.tell()
    stream.seek(_LOCKED_BYTE)
    try:
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    finally:
        stream.seek(at)


def _delete_unheld(leftover: Path) -> None:
    with suppress(OSError):
        with open(leftover, "rb+") as stream:
            unheld = _left_over(stream)
            if unheld and not open_files_stay():
                leftover.unlink()  # while it is locked: a writer that locks it later finds it gone
        if unheld and open_files_stay():
            leftover.unlink()


def _changes_hands(stream: BinaryIO) -> bool:
    """Whether the file may be one that its writer has just closed and is about to give its name."""
    return open_files_stay() and time.time() - os.fstat(stream.fileno()).st_mtime < _JUST_NOW


def _replace(temporary: Path, path: Path) -> None:
    """Rename a file; where it cannot while somebody reads the one of that name, wait for a moment."""
    for pause in _PAUSES if open_files_stay() else ():
        with suppress(PermissionError):
            os.replace(temporary, path)
            return
        time.sleep(pause)
    os.replace(temporary, path)


def _escaped(name: str) -> str:
    """A name as a glob pattern that matches it alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut; file systems that cannot are left alone."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
