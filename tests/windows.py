"""What Windows does otherwise with open files, put on Linux for a test: none is renamed, replaced or deleted."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from openbench.storage import trust, whole


def held() -> set[str]:
    """The files that this process has open or mapped."""
    names = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            names.add(os.readlink(f"/proc/self/fd/{number}"))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return names | {line.split(maxsplit=5)[5] for line in maps if len(line.split(maxsplit=5)) == 6}


def lock_a_byte(number: int, how: int, size: int) -> None:
    """`msvcrt.locking` without waiting: the bytes at the place where the file is, refused where they are locked."""
    import fcntl

    assert (how, size) == (2, 1)
    assert os.lseek(number, 0, os.SEEK_CUR) > 1 << 30, "others could not read the byte that is locked"
    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Have the functions of `os` refuse what Windows refuses, and locks work as they do there."""
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("/proc, which tells the files that are open")

    def refusing(function):
        def refuses(*paths, **rest):
            for path in paths:
                if not str(path).endswith(".lock") and os.path.realpath(path) in held():
                    raise PermissionError(errno.EACCES, "The process cannot access the file", str(path))
            return function(*paths, **rest)

        return refuses

    for name in ("replace", "rename", "unlink", "remove"):
        patch.setattr(os, name, refusing(getattr(os, name)))
    patch.setattr(shutil, "_use_fd_functions", False)
    patch.setattr(trust, "fcntl", None)
    patch.setattr(whole, "msvcrt", SimpleNamespace(locking=lock_a_byte, LK_NBLCK=2))
