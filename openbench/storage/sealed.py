"""Small files that carry the digest of their own content, so that a changed byte is noticed."""

from pathlib import Path

from openbench.digest import bytes_sha256
from openbench.storage.whole import write_whole

_MAGIC = b"openbench sealed 1 "
_HEADER = len(_MAGIC) + 64 + 1  # 64 hex digits and a line break


class DamagedError(ValueError):
    """A sealed file does not hold what was written; it is treated as missing, and the reader says so."""


def write_sealed(path: Path, content: bytes) -> None:
    """Write content under its digest, whole or not at all.

    Args:
        path: the file; its folder is made if it is missing.
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
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedError(f"'{path}' cannot be read ({error.strerror or error})") from error
    header, content = whole[:_HEADER], whole[_HEADER:]
    if header != _MAGIC + bytes_sha256(content).encode() + b"\n":
        raise DamagedError(f"'{path}' has changed since it was written")
    return content
