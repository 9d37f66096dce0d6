"""A command under a limit of memory: a child does the work, since PyTorch may die where it meets the limit."""

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from openbench.cli.process import interrupts
from openbench.cli.process.exits import BAD_INPUT
from openbench.cli.process.limits import limits_set

_DEATHS = (signal.SIGSEGV, signal.SIGABRT)  # of C++ that did not look whether it was given memory
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG, for prctl of Linux
_STDERR = 2


def prepare() -> None:
    """Go on in a child of this process where a limit of memory is set; return at once where none is.

    The parent never returns: it passes signals on to the child, waits for it, and ends as it ends. If the child dies as
    C++ does for want of memory, one message says so, and the exit code is 2; unless C++ names another reason.
    """
    limits = limits_set()
    if not limits or not hasattr(os, "memfd_create"):  # elsewhere than on Linux the limits mean little
        return
    heard = os.memfd_create("stderr")
    with interrupts.held_back():
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _prepare_child(parent, heard)
        else:
            interrupts.pass_on(child)
    if child:
        _, status = os.waitpid(child, 0)
        _end_as(os.waitstatus_to_exitcode(status), os.pread(heard, os.fstat(heard).st_size, 0), limits)


def _end_as(code: int, heard: bytes, limits: dict[str, int]) -> NoReturn:
    """End as the child ended.

    Args:
        code: its exit code, negative for a signal.
        heard: what was written to its stderr by others than Python.
        limits: as `limits_set` returns them.
    """
    died = -code in _DEATHS and not _of_another_kind(heard)
    with suppress(OSError):
        os.write(_STDERR, _message(signal.Signals(-code), limits).encode() if died else heard)
    if code < 0 and not died:
        with suppress(OSError):  # SIGKILL has no other handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)  # whoever waits for this process sees what happened
    os._exit(BAD_INPUT if died else code)


def _of_another_kind(heard: bytes) -> bool:
    """Whether the last words of C++ name an exception, and nothing about memory."""
    from openbench.cli.process.os_errors import speaks_of_memory  # needed at the end only

    return b"throwing an instance of" in heard and not speaks_of_memory(heard.decode(errors="replace"))


def _prepare_child(parent: int, heard: int) -> None:
    """Let the child end with its parent, and keep for the parent what C++ writes to stderr while it dies."""
    import ctypes  # needed under a limit only

    ctypes.CDLL(None).prctl(_END_WITH_PARENT, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(BAD_INPUT)
    told = os.dup(_STDERR)
    sys.stderr = os.fdopen(told, "w", buffering=1, errors="backslashreplace")
    os.dup2(heard, _STDERR)
    interrupts.take_over(told)


def _message(death: signal.Signals, limits: dict[str, int]) -> str:
    allowed = " and ".join(f"`{command}` allows {size >> 20:,} MiB" for command, size in limits.items())
    unlimited = ", ".join(f"{command} unlimited" for command in limits)
    return (
        f"error: not enough memory — {allowed}, and a library ended the process with {death.name}, as PyTorch does "
        f"where it is given no more — type {unlimited}, ask the batch system for more, or lower runtime.batch_size or, "
        "for a training, training.recipe.batch_size; what was finished is kept, and the same command goes on from "
        "there\n"
    )
