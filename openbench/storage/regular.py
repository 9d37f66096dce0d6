"""Reading small files that others made: no pipe that never ends, no device, nothing that fills the memory."""

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file.

    Args:
        path: the file, or a link to it.
        most: bytes that are read at most.

    Raises:
        OSError: it cannot be read, is a pipe, a device or a folder, or holds more.
    """
    # Without O_NONBLOCK opening a pipe waits for somebody to write to it. Windows has neither.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as stream:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "found a pipe or a device, not a regular file", str(path))
        content = stream.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"found more than {most:,} bytes", str(path))
    return content
