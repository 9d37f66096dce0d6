"""The digest of a large file, computed once for each state of the file that this process meets."""

import os
from pathlib import Path

from openbench.digest import file_digest

# Device, inode, size, and both time stamps: a file that is written to, or replaced, changes at least one of them; the
# second stamp also if the first was set back.
_State = tuple[int, int, int, int, int]
_known: dict[tuple[Path, _State], str] = {}


def content_digest(path: Path) -> str:
    """Return the block digest of a file's bytes, as `digest.file_digest` does.

    The bytes are read by the first call, and by any later call that finds the file in another state.

    Raises:
        OSError: the file cannot be read.
    """
    place = path.absolute()
    state = _state(place)
    found = _known.get((place, state))
    if found is None:
        found = file_digest(place)
        if _state(place) == state:  # otherwise it changed while it was read, and the digest belongs to neither state
            _known[place, state] = found
    return found


def remember(path: Path, digest: str) -> None:
    """Note the digest of a file that this process has just written, so that it is not read again."""
    place = path.absolute()
    _known[place, _state(place)] = digest


def _state(path: Path) -> _State:
    s = os.stat(path)
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
