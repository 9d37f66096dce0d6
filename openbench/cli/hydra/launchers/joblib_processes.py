"""The processes of joblib: an interrupt ends them without a word, also while they start."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any


@contextmanager
def quiet(folder: Path) -> Iterator[None]:
    """Have the processes that joblib starts within the block end by an interrupt like any program, with no traceback.

    A terminal interrupts them together with the process that started them. Python would print a traceback for each that
    is importing its modules. They start with the signal blocked, as joblib's own clean-up process does.

    Args:
        folder: of the sweep; not used.
    """
    try:
        from joblib.externals.loky.backend import popen_loky_posix
    except ImportError:  # Windows
        yield
        return
    popen: Any = popen_loky_posix.Popen
    launch = popen._launch

    def launching(self: Any, process: Any) -> None:
        process._target = partial(end_by_signal, process._target)
        resource_tracker.ensure_running()  # where it starts here, it lets the signal through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            launch(self, process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    popen._launch = launching
    try:
        yield
    finally:
        popen._launch = launch


def end_by_signal(target: Callable[..., object], *arguments: object, **named: object) -> None:
    """Do the work of a process that started with interrupts blocked; one that has come since ends it here."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as after `nohup`
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    target(*arguments, **named)
