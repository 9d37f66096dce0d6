"""What the operating system refuses, in the project's words: no room, no permission, no memory."""

import errno
import re

from openbench.errors import OpenbenchError

# Errors that a disk, a folder or a name causes. Others, such as a file that is not there, would be openbench's bugs.
_FILES = {
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "ENAMETOOLONG", "ENOTDIR", "EISDIR"),
        *("EEXIST", "ELOOP", "EMFILE", "ENFILE", "ESTALE", "ENXIO", "ENODEV"),
    )
    if hasattr(errno, name)
}
_MEMORY = re.compile(
    r"not enough memory|allocate memory|out of memory|bad_alloc|can't start new thread|failed to map segment|"
    r"cannot map zero-fill pages|cannot create shared object descriptor|"  # of the loader of shared libraries
    r"Unable to allocate|Resource temporarily unavailable|malloc of size|realloc of size|"
    r"could not (create|execute) a (primitive|memory object)$|"  # oneDNN, in torch
    r"error return without exception set",  # of Python, when there was none left for the exception
    re.IGNORECASE,
)
_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


def refused(error: BaseException) -> OpenbenchError | None:
    """Return what to tell the user about an error of the operating system; None if it is a bug of openbench.

    Args:
        error: as it was raised, by Python, NumPy, torch or Arrow.
    """
    if _of_memory(error) and isinstance(error, ImportError):
        line = next(line for line in str(error).splitlines() if _MEMORY.search(line))
        return OpenbenchError(
            f"not enough memory to load a library — {line.rpartition(': ')[2]} — raise the limit (ulimit -v unlimited, "
            "ulimit -d unlimited), or ask the batch system for more, and give the same command again"
        )
    if _of_memory(error):
        return OpenbenchError(
            f"not enough memory — {_first_line(error)} — lower runtime.batch_size (images per forward pass), "
            "runtime.score_batch (rows per score), runtime.workers or, for a training, training.recipe.batch_size; or "
            "end other programs; what was finished is kept, and the same command goes on from there"
        )
    if not isinstance(error, OSError) or error.errno not in _FILES:
        return None
    where = f"'{_shown(error.filename)}' cannot be used" if error.filename else "a file or the output cannot be written"
    what = "make room" if error.errno in _ROOM else "choose another place"
    return OpenbenchError(
        f"{where} — {error.strerror or error} — {what} (the cache is OPENBENCH_CACHE or runtime.cache, records go to "
        "OPENBENCH_RESULTS or runtime.results) and give the same command again"
    )


def speaks_of_memory(text: str) -> bool:
    """Whether what a library says is about a lack of memory."""
    return bool(_MEMORY.search(text))


def _of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN)):
        return True
    # torch's own class for CUDA is a RuntimeError too; the loader's of shared libraries is an ImportError.
    return isinstance(error, RuntimeError | ImportError | OSError | SystemError) and speaks_of_memory(str(error))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0] or type(error).__name__


def _shown(name: str | bytes) -> str:
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)
