"""Files with a digest of their content: sealed bytes, JSON that states its digest, and large files."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

from openbench.digest import bytes_sha256, file_digest
from openbench.storage.files import write_whole

# What NumPy raises for an array file with damaged bytes; it reads old headers with Python's tokenizer, whose error has
# no base class in common with the others.
DAMAGED = (OSError, ValueError, EOFError, TypeError, KeyError, SyntaxError, OverflowError, TokenError)
KEY = "content_sha256"
_MAGIC = b"openbench sealed 1 "
_HEADER = len(_MAGIC) + 64 + 1  # 64 hex digits and a line break

# Device, inode, size, and both time stamps: a file that is written to, or replaced, changes at least one of them; the
# second stamp also if the first was set back.
_State = tuple[int, int, int, int, int]
_known: dict[tuple[Path, _State], str] = {}


class DamagedError(ValueError):
    """A file is damaged; it is treated as missing, and the reader reports it."""


def write_sealed(path: Path, content: bytes) -> None:
    """Write content under its digest, whole or not at all.

    Args:
        path: the file; a missing folder is created.
        content: any bytes.

    Raises:
        OSError: the folder cannot be written or the disk is full; the old content is then still there.
    """
    write_whole(path, _MAGIC + bytes_sha256(content).encode() + b"\n" + content)


def read_sealed(path: Path) -> bytes:
    """Return the content that `write_sealed` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it cannot be read, or a byte has changed since it was written.
    """
    whole = _read(path)
    header, content = whole[:_HEADER], whole[_HEADER:]
    if header != _MAGIC + bytes_sha256(content).encode() + b"\n":
        raise DamagedError(f"'{path}' has changed since it was written")
    return content


def stated(content: Mapping[str, Any]) -> bytes:
    """Return `content` as JSON text with, as its last key, the digest of the text without that key."""
    return _text({**content, KEY: bytes_sha256(_text(content))})


def read_stated(path: Path) -> dict[str, Any]:
    """Return the content of a file that `stated` made; an older file without a digest is taken as it is.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it cannot be read, is not a JSON object, or has changed since it was written.
    """
    whole = _read(path)
    try:
        content = json.loads(whole)
    except ValueError as error:
        raise DamagedError(f"'{path}' cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise DamagedError(f"'{path}' is not a JSON object")
    # The key's name may be damaged too; one changed byte cannot damage both of its halves.
    start, end = KEY.split("_")
    if not any(name.startswith(start) or name.endswith(end) for name in content):
        return content
    content.pop(KEY, None)
    if whole != stated(content):
        raise DamagedError(f"'{path}' has changed since it was written")
    return content


def content_digest(path: Path) -> str:
    """Return the block digest of a large file; its bytes are read once for each state that this process meets it in.

    Raises:
        OSError: the file cannot be read.
    """
    place = path.absolute()
    state = _state(place)
    digest = _known.get((place, state))
    if digest is None:
        digest = file_digest(place)
        if _state(place) == state:  # otherwise it changed while it was read, and the digest belongs to neither state
            _known[place, state] = digest
    return digest


def _state(path: Path) -> _State:
    s = os.stat(path)
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(f"'{path}' cannot be read ({error.strerror or error})") from error


def _text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
