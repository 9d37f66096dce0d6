"""The process of a command: exit codes, signals, and errors as one message on stderr."""

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from openbench.errors import OpenbenchError
from openbench.results.escape import console_lines

OK = 0
FAILED = 1  # a check failed, or an internal error with its traceback
BAD_INPUT = 2  # arguments, configs, data or files; one message on stderr
ALARM = 3  # of `monitor`: the stream has changed; all else went well
INTERRUPTED = 130  # Ctrl-C, as shells count it
TERMINATED = 143  # SIGTERM: `kill`, a batch system, or a machine that shuts down

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_MEMORY = re.compile("(not enough|out of|allocate) memory|bad_alloc", re.IGNORECASE)


class Terminated(KeyboardInterrupt):
    """SIGTERM; code that stops for Ctrl-C stops for it too."""


def take_signals() -> None:
    """Have SIGTERM stop the command as Ctrl-C does, and a second signal end the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as after `nohup`
            signal.signal(number, stop)


def flush(code: int) -> None:
    """Write out stdout, so that a full disk behind `>` is reported here, once, and not by the interpreter."""
    try:
        sys.stdout.flush()
    except OSError:
        if code == OK:
            raise
        _discard_output()


def report(error: Exception | KeyboardInterrupt) -> int:
    """Print on stderr the error or interrupt that ended a command, and return its exit code."""
    if isinstance(error, KeyboardInterrupt):
        terminated = isinstance(error, Terminated)
        print("terminated" if terminated else "interrupted", file=sys.stderr)
        return TERMINATED if terminated else INTERRUPTED
    if isinstance(error, OSError):
        _discard_output()
    if isinstance(error, BrokenPipeError):  # the reader (`| head`) has seen enough
        return OK
    message = message_of(error)
    if message is None:
        traceback.print_exception(error)
        return FAILED
    print(f"error: {console_lines(message)}", file=sys.stderr)
    return BAD_INPUT


@contextmanager
def writing(path: Path, option: str = "") -> Iterator[None]:
    """Report a file that cannot be written, with the option that names another.

    Raises:
        OpenbenchError: writing it within the block failed.
    """
    try:
        yield
    except OSError as error:
        what = f"{option} '{path}'".strip()
        raise OpenbenchError(f"{what} cannot be written ({error.strerror or error}) — choose another place") from error


def message_of(error: Exception) -> str | None:
    """Return the message for a user's error; None for a bug of openbench, which keeps its traceback."""
    if isinstance(error, OpenbenchError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError | OSError) and _MEMORY.search(str(error))):
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        return (
            f"not enough memory ({first_line}) — lower runtime.batch_size (images per forward pass), "
            "runtime.score_batch (rows per score), runtime.workers or, for a training, training.recipe.batch_size"
        )
    # A file that is not there would be a bug of openbench.
    if isinstance(error, OSError) and error.errno in errno.errorcode and not isinstance(error, FileNotFoundError):
        where = f"'{error.filename}' cannot be used" if error.filename else "the output cannot be written"
        return (
            f"{where} ({error.strerror}) — {'make room' if error.errno in _NO_ROOM else 'choose another place'} (the "
            "cache is OPENBENCH_CACHE or runtime.cache, records go to OPENBENCH_RESULTS or runtime.results)"
        )
    return None


def _discard_output() -> None:
    """Discard what is still buffered for stdout, which Python would write at exit."""
    with suppress(OSError, ValueError):  # it is closed, or no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
