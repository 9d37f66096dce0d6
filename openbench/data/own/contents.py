"""Digests of a user's own files: each file is read once, and again only if the file system reports a change."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.digest import digest, file_sha256
from openbench.errors import DataError
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

_FOLDER = "contents"

# (n, 32) uint8: the SHA-256 of each file.
Contents = NDArray[np.uint8]


def contents_of(files: Sequence[Path]) -> Contents:
    """Return the SHA-256 of the bytes of each file, (n, 32) uint8.

    The files are read when they are first seen in a place; afterwards only if the file system reports a change: size,
    either time stamp, or another file under the same name. The digests are kept in the cache folder; deleting them is
    safe. When a file is decoded later, its bytes are compared with its digest; see `items.FileItems`.

    Raises:
        DataError: a file cannot be read.
    """
    return _known(files, "", len(files), lambda: map(file_sha256, files))


def contents_within(files: Sequence[Path], count: int, rows: Callable[[], Iterable[str]]) -> Contents:
    """Return the SHA-256 of each image where a file holds many, (count, 32) uint8; kept as by `contents_of`.

    Args:
        files: all that the images are read from.
        count: how many images there are.
        rows: reads them, and returns the SHA-256 of each.

    Raises:
        DataError: a file cannot be read.
    """
    return _known(files, "-rows", count, rows)


def _known(files: Sequence[Path], ending: str, count: int, read: Callable[[], Iterable[str]]) -> Contents:
    """The digests of files in their present state: from the cache, or read now if they are not there."""
    try:
        known = paths.cache_dir() / _FOLDER / f"{state_of(files)}{ending}"
        with suppress(FileNotFoundError, DamagedError):
            found = np.frombuffer(read_sealed(known), dtype=np.uint8)
            if found.size == 32 * count:
                return found.reshape(-1, 32)
        joined = b"".join(map(bytes.fromhex, read()))
    except OSError as error:
        raise DataError(
            f"'{error.filename}' cannot be read — {error.strerror} — get the file again, or list the images again"
        ) from error
    with suppress(OSError):  # if the cache cannot be written, the files are read each time
        write_sealed(known, joined)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)


def digest_of(contents: Contents) -> str:
    """Return one digest of all files in order; it does not depend on where they lie or when they were written."""
    return digest([row.tobytes().hex() for row in contents], 32)


def state_of(files: Sequence[Path]) -> str:
    """Return a digest of what the file system reports of files: which they are, their sizes and both time stamps.

    Raises:
        OSError: one is not there.
    """
    stats = [os.stat(path) for path in files]
    return digest(
        [(str(path), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in zip(files, stats, strict=True)],
        32,
    )
