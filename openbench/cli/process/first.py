"""Ctrl-C and a lack of memory in the first moments, before even Python's own `signal` is imported: no traceback."""

import _signal  # what `signal` is made of; it is there from the start
import os
import sys


def prepare() -> None:
    """Have Ctrl-C end the process where it stands, until `interrupts.prepare` says otherwise."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, end)
    sys.excepthook = _uncaught


def end(number: int, frame: object) -> None:
    """End the process: nothing has begun."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def _uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Report a lack of memory in imports; a later one is reported by `__main__.main`."""
    lacking = (
        *("failed to map segment", "cannot map zero-fill", "Cannot allocate memory"),
        *("without exception set", "without setting an exception"),
    )
    if isinstance(error, MemoryError) or any(words in str(error) for words in lacking):
        os.write(
            2,
            b"error: not enough memory to start Python's own modules: raise the limit (ulimit -v unlimited, "
            b"ulimit -d unlimited)\n",
        )
        os._exit(2)
    sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
