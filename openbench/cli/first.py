"""Ctrl-C in the first moments, before even Python's own `signal` is imported: one word, no traceback."""

import _signal  # what `signal` is made of; it is there from the start
import os


def prepare() -> None:
    """Have Ctrl-C end the process where it stands, until `interrupts.prepare` says otherwise."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end)


def end(number: int, frame: object) -> None:
    """End the process: nothing has begun."""
    os.write(2, b"interrupted\n")
    os._exit(130)
