"""Ctrl-C and SIGTERM: the process ends within half a second, whatever it is doing, and says one word.

Python raises KeyboardInterrupt between two of its own instructions. That may be seconds after the key was pressed,
while a library computes; and where a library is being imported, it may be swallowed or dressed up as another error.
"""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from openbench.cli.process import first
from openbench.cli.process.exits import INTERRUPTED, TERMINATED, Terminated

_PATIENCE = 0.3  # seconds that the program has to leave by itself
_WORDS = {signal.SIGINT: (b"interrupted\n", INTERRUPTED), signal.SIGTERM: (b"terminated\n", TERMINATED)}
_SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar hides it
_answered = threading.Event()
_prepared = threading.Event()
_begun = threading.Event()
_said: list[Callable[[], str]] = []
_pressed: list[KeyboardInterrupt] = []
_when: list[float] = []
_stderr = [2]
_ONE_PRESS = 0.05  # seconds
_MOMENT = 0.1  # seconds that last words may take


def prepare() -> None:
    """Have signals end this process; called by the command line, never by the library. A second call does nothing."""
    if _prepared.is_set() or threading.current_thread() is not threading.main_thread():
        return
    _prepared.set()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
    _listen()


def _listen() -> None:
    """Take signals from now on, in this process."""
    for number in _WORDS:
        # `nohup` and `&` ignore SIGINT.
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, first.end):
            signal.signal(number, _first)
    sys.unraisablehook = _unraisable
    reader, writer = os.pipe()
    if hasattr(os, "set_blocking"):  # Windows has it from Python 3.12 on, and does without
        os.set_blocking(writer, False)
    with suppress(RuntimeError):  # no memory for a thread; what the main thread sees is answered all the same
        # `Thread.start` would wait for ever for a thread that had no memory left to begin with.
        _thread.start_new_thread(_watch, (reader,))
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)


@contextmanager
def held_back() -> Iterator[None]:
    """Have signals wait until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WORDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pass_on(child: int) -> None:
    """Hand the signals that arrive from now on to a child that does the work of this process, and report none here.

    Args:
        child: its process id; `take_over` was called there.
    """

    def hand(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    signal.set_wakeup_fd(-1)
    for number in _WORDS:
        if signal.getsignal(number) is _first:
            signal.signal(number, hand)


def take_over(stderr: int) -> None:
    """Have signals end this forked child as they would have ended its parent.

    Args:
        stderr: the file descriptor that the last word goes to.
    """
    _stderr[0] = stderr
    _listen()


def begin() -> None:
    """Say that from now on there may be something to clean up; before, a signal ends the process where it stands."""
    _begun.set()


def under_way() -> None:
    """Say that the interrupt has arrived and the program is leaving: no signal hurries it any more."""
    _answered.set()


def check() -> None:
    """Raise the interrupt that has arrived, if any: a library may have turned it into another error.

    Raises:
        KeyboardInterrupt: as it was raised first.
    """
    if _pressed:
        raise _pressed[0]


@contextmanager
def last_words(say: Callable[[], str]) -> Iterator[None]:
    """Print a text on stderr if a signal ends the process within the block before the block can report it.

    Args:
        say: returns the text; it must be quick, and must not import anything.
    """
    _said.append(say)
    try:
        yield
    finally:
        _said.remove(say)


def leave(code: int) -> None:
    """End the process at once after an interrupt, where taking torch apart would take seconds.

    After anything else there is nothing left to do: from here on a signal ends the process as it ends any other.
    """
    if code in (INTERRUPTED, TERMINATED):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    _forget(signal.SIG_DFL)


def _first(number: int, frame: FrameType | None) -> None:
    if not _begun.is_set() or _importing(frame):
        _end(number)
    # Another may arrive from here on, at any line.
    _when.append(time.monotonic())
    _pressed.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
    for each in _WORDS:
        if signal.getsignal(each) is _first:
            signal.signal(each, _second)
    raise _pressed[0]


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported; the C++ in one aborts the process if it meets an exception there."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """Python drops an exception where it takes objects apart, after a traceback; an interrupt is not dropped."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        _end(signal.SIGTERM if isinstance(lost.exc_value, Terminated) else signal.SIGINT)
    sys.__unraisablehook__(lost)


def _second(number: int, frame: FrameType | None) -> None:
    """Somebody is in a hurry; what a kill leaves, the next run cleans up.

    One press may arrive twice: from the terminal and from a parent that passes it on.
    """
    if time.monotonic() - _when[0] > _ONE_PRESS:
        _end(number)


def _watch(reader: int) -> None:
    """Wait for a signal, in a thread of its own, since the main thread may be deep inside a library."""
    while True:
        for number in os.read(reader, 1):
            if number in _WORDS and signal.getsignal(number) in (_first, _second) and not _answered.wait(_PATIENCE):
                _end(number)


def _end(number: int) -> None:
    word, code = _WORDS[signal.Signals(number)]
    with suppress(OSError):
        os.write(_stderr[0], (_SHOW_CURSOR if os.isatty(_stderr[0]) else b"") + word)
    # In a thread, so that what this one holds, or a slow disk, cannot keep the process.
    said = _thread.allocate_lock()
    said.acquire()
    with suppress(RuntimeError):  # no thread can be started
        _thread.start_new_thread(_speak, (said,))
        said.acquire(timeout=_MOMENT)
    os._exit(code)


def _speak(said: _thread.LockType) -> None:
    for say in _said:
        with suppress(Exception):
            os.write(_stderr[0], say().encode(errors="backslashreplace"))
    said.release()


def _forget(interrupt: Callable[[int, FrameType | None], object] | int = signal.default_int_handler) -> None:
    """Take signals as any process does: in a forked child, which must not wake its parent, and at the end."""
    signal.set_wakeup_fd(-1)
    sys.unraisablehook = sys.__unraisablehook__
    for number in _WORDS:
        if signal.getsignal(number) in (_first, _second):
            signal.signal(number, interrupt if number == signal.SIGINT else signal.SIG_DFL)
