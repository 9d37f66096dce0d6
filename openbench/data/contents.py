"""What a user's own files hold: the digest of each, read once for each state that the file system tells of."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.digest import digest, file_sha256
from openbench.errors import DataError
from openbench.storage.sealed import DamagedError, read_sealed, write_sealed

_FOLDER = "contents"

# (n, 32) uint8: the SHA-256 of each file.
Contents = NDArray[np.uint8]


def contents_of(files: Sequence[Path]) -> Contents:
    """Return the SHA-256 of the bytes of each file, (n, 32) uint8.

    The files are read when they are first seen in a place; afterwards only if the file system tells of a change: size,
    either time stamp, or another file under the same name. What is known of them is kept in the cache folder, and
    deleting it is safe. A reader who decodes a file later compares its bytes with these; see `items.FileItems`.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        known = paths.cache_dir() / _FOLDER / _state(files)
        with suppress(FileNotFoundError, DamagedError):
            found = np.frombuffer(read_sealed(known), dtype=np.uint8)
            if found.size == 32 * len(files):
                return found.reshape(-1, 32)
        joined = b"".join(bytes.fromhex(file_sha256(path)) for path in files)
    except OSError as error:
        raise DataError(
            f"'{error.filename}' cannot be read — {error.strerror} — get the file again, or list the images again"
        ) from error
    with suppress(OSError):  # without a cache that can be written the files are read each time
        write_sealed(known, joined)
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, 32)


def digest_of(contents: Contents) -> str:
    """Return one digest of all files in order; where they lie and when they were written is none of it."""
    return digest([row.tobytes().hex() for row in contents], 32)


def _state(files: Sequence[Path]) -> str:
    stats = [os.stat(path) for path in files]
    return digest(
        [(str(path), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in zip(files, stats, strict=True)],
        32,
    )
