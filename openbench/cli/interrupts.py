"""Ctrl-C and SIGTERM: the process ends within half a second, whatever it is doing, and says one word.

Python raises KeyboardInterrupt between two of its own instructions. That may be seconds after the key was pressed,
while a library computes; and where a library is being imported, it may be swallowed or dressed up as another error.
"""

import os
import signal
import sys
import threading
from contextlib import suppress

from openbench.cli.exits import INTERRUPTED, TERMINATED, Terminated

_PATIENCE = 0.3  # seconds that the program has to leave by itself
_WORDS = {signal.SIGINT: (b"interrupted\n", INTERRUPTED), signal.SIGTERM: (b"terminated\n", TERMINATED)}
_SHOW_CURSOR = b"\x1b[?25h\n"  # a progress bar hides it
_answered = threading.Event()
_prepared = threading.Event()
_begun = threading.Event()


def prepare() -> None:
    """Have signals end this process; called by the command line, never by the library. A second call does nothing."""
    if _prepared.is_set() or threading.current_thread() is not threading.main_thread():
        return
    _prepared.set()
    for number in _WORDS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # `nohup` and `&` ignore SIGINT
            signal.signal(number, _first)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="interrupts", daemon=True).start()


def begin() -> None:
    """Say that from now on there may be something to clean up; before, a signal ends the process where it stands."""
    _begun.set()


def under_way() -> None:
    """Say that the interrupt has arrived and the program is leaving: it is not hurried any more."""
    _answered.set()


def leave(code: int) -> None:
    """End the process at once after an interrupt, where taking torch apart would take seconds."""
    if code in (INTERRUPTED, TERMINATED):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _first(number: int, frame: object) -> None:
    if not _begun.is_set():
        _end(number)
    for each in _WORDS:
        if signal.getsignal(each) is _first:
            signal.signal(each, _second)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _second(number: int, frame: object) -> None:
    """Somebody is in a hurry; what a kill leaves, the next run cleans up."""
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
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + word)
    os._exit(code)


def _forget() -> None:
    """In a forked child: signals are its own affair, and must not wake its parent."""
    signal.set_wakeup_fd(-1)
    for number in _WORDS:
        if signal.getsignal(number) in (_first, _second):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
