"""Whether a user's own files hold what they held: content, read once for each state that the file system tells of."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from openbench import paths
from openbench.digest import digest, file_sha256
from openbench.errors import DataError

_FOLDER = "contents"


def content_of(files: Sequence[Path]) -> str:
    """Return a digest of the bytes of all files in order; where they lie and when they were written is none of it.

    The files are read when they are first seen in a place; afterwards only if a size or a time stamp has changed. What
    is known of them is kept in the cache folder, and deleting it is safe.

    Raises:
        DataError: a file cannot be read.
    """
    try:
        stats = [os.stat(path) for path in files]
        state = digest([(str(p), s.st_size, s.st_mtime_ns) for p, s in zip(files, stats, strict=True)], 32)
        known = paths.cache_dir() / _FOLDER / state
        with suppress(OSError):
            found = known.read_text(encoding="ascii")
            if found:
                return found
        content = digest([file_sha256(path) for path in files], 32)
    except OSError as error:
        raise DataError(
            f"'{error.filename}' cannot be read — {error.strerror} — get the file again, or list the images anew"
        ) from error
    with suppress(OSError):  # without a cache that can be written the files are read each time
        known.parent.mkdir(parents=True, exist_ok=True)
        part = known.with_name(f"{state}.{os.getpid()}.part")
        part.write_text(content, encoding="ascii")
        os.replace(part, known)
    return content
