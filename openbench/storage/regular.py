"""Reading small files from elsewhere; pipes, devices and files that would fill the memory are refused."""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file.

    Args:
        path: the file, or a link to it.
        most: the largest size in bytes that is read.

    Raises:
        OSError: it cannot be read, is a pipe, a device or a folder, or holds more.
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
