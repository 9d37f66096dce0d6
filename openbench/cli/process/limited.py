"""A command under a limit of memory: a child does the work, since PyTorch may die where it meets the limit."""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

from openbench.cli.process import interrupts
from openbench.cli.process.exits import BAD_INPUT
from openbench.cli.process.limits import limits_set

_DEATHS = (signal.SIGSEGV, signal.SIGABRT)  # of C++ that did not look whether it was given memory
# A line with one of these may be the first of its last words: it waits for the end, with all that follows, for a while.
_OMENS = (
    *(b"terminat", b"memory", b"alloc", b"abort", b"fatal", b"corrupt", b"free()", b"***", b"map segment"),
    *(b"zero-fill", b"resource temporarily", b"could not create", b"creation failed", b"exception", b"what():"),
)
_LAST_WORDS = 30.0  # seconds that a library may take to die after them, e.g. while its memory is dumped
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG, for prctl of Linux
_STDERR = 2


def prepare() -> None:
    """Go on in a child of this process where a limit of memory is set; return at once where none is.

    The parent never returns: it passes signals and stderr on, waits for the child, and ends as it ends. If the child
    dies as C++ does for want of memory, one message says so, and the exit code is 2; unless C++ names another reason.
    """
    limits = limits_set()
    if not limits or not hasattr(os, "pidfd_open"):  # elsewhere than on Linux the limits mean little
        return
    heard, told = os.pipe()
    with interrupts.held_back():
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.close(heard)
            _prepare_child(parent, told)
        else:
            os.close(told)
            interrupts.pass_on(child)
    if child:
        last = _pass_on(heard, child)
        _, status = os.waitpid(child, 0)
        _end_as(os.waitstatus_to_exitcode(status), last, limits)


def _pass_on(heard: int, child: int) -> bytes:
    """Write a child's stderr line by line as it comes; return what could be its last words, once it has ended.

    Args:
        heard: the end of a pipe that others than Python write to; processes that outlive the child may keep it open.
        child: its process id.
    """
    os.set_blocking(heard, False)
    waited: list[int] = [heard]
    wait: float | None = 0.1
    with suppress(OSError):  # before Linux 5.3: ask ten times a second
        waited, wait = [heard, os.pidfd_open(child)], None
    kept, since, ended = b"", 0.0, False
    while not ended:
        select.select(waited, (), (), _LAST_WORDS if kept and wait is None else wait)
        # Before the pipe is read, so that nothing is lost that was written before the end.
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        with suppress(BlockingIOError):
            while chunk := os.read(heard, 1 << 16):
                since = since if kept else time.monotonic()
                kept = _told(kept + chunk)
            waited = [end for end in waited if end != heard]  # all have closed it
        if kept and not ended and time.monotonic() - since >= _LAST_WORDS:
            _write(kept)
            kept = b""
    return kept


def _told(text: bytes) -> bytes:
    """Write the lines before one that could be among the last words, and return the rest."""
    at = 0
    while (end := text.find(b"\n", at) + 1) and not any(omen in text[at:end].lower() for omen in _OMENS):
        at = end
    _write(text[:at])
    return text[at:]


def _write(text: bytes) -> None:
    """Write all of it to stderr, unless nobody reads that any more."""
    with suppress(OSError):
        while text:
            text = text[os.write(_STDERR, text) :]  # a signal may end a write after some of it


def _end_as(code: int, heard: bytes, limits: dict[str, int]) -> NoReturn:
    """End as the child ended.

    Args:
        code: its exit code, negative for a signal.
        heard: what was written to its stderr by others than Python, and has not been passed on.
        limits: as `limits_set` returns them.
    """
    died = -code in _DEATHS and not _of_another_kind(heard)
    _write(_message(signal.Signals(-code), limits).encode() if died else heard)
    if code < 0 and not died:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)  # whoever waits for this process sees what happened
    os._exit(BAD_INPUT if died else code)


def _of_another_kind(heard: bytes) -> bool:
    """Whether the last words of C++ name an exception, and nothing about memory."""
    from openbench.cli.process.os_errors import speaks_of_memory  # needed at the end only

    return b"throwing an instance of" in heard and not speaks_of_memory(heard.decode(errors="replace"))


def _prepare_child(parent: int, told: int) -> None:
    """Let the child end with its parent, and give the parent what C++ writes to stderr; Python writes there itself."""
    import ctypes  # needed under a limit only

    ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(BAD_INPUT)
    own = os.dup(_STDERR)
    sys.stderr = os.fdopen(own, "w", buffering=1, errors="backslashreplace")
    os.dup2(told, _STDERR)
    os.close(told)
    interrupts.take_over(own)


def _message(death: signal.Signals, limits: dict[str, int]) -> str:
    allowed = " and ".join(f"`{command}` allows {size >> 20:,} MiB" for command, size in limits.items())
    unlimited = ", ".join(f"{command} unlimited" for command in limits)
    return (
        f"error: not enough memory — {allowed}, and a library ended the process with {death.name}, as PyTorch does "
        f"where it is given no more — type {unlimited}, ask the batch system for more, or lower runtime.batch_size or, "
        "for a training, training.recipe.batch_size; what was finished is kept, and the same command goes on from "
        "there\n"
    )
