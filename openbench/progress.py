"""How far a long job is: a bar in a notebook or on a terminal, a line now and then on stderr elsewhere."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal, Self

_VARIABLE = "OPENBENCH_MESSAGES"  # environment variable, since a sweep's jobs run in other processes
_LEVELS = {"debug": logging.DEBUG, "warning": logging.WARNING}
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1), ("s", 1))


def in_notebook() -> bool:
    """Return whether the code runs in a notebook's kernel, whose output is a page."""
    # IPython's own module is loaded wherever it runs; importing it would cost others half a second.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class Report:
    """How far a job is: a bar, its title on a line above; elsewhere plain lines on stderr; or nothing. Used by `with`.

    Args:
        title: what is being done to what.
        total: how much there is to do.
        done: how much an earlier, interrupted job had done.
        unit: of what.
        show: whether anything is shown.
    """

    def __init__(self, title: str, total: int, *, done: int = 0, unit: str = "images", show: bool = True) -> None:
        self._title, self.total, self._done, self._first, self._unit = title, total, done, done, unit
        self._show = show = show and os.environ.get(_VARIABLE) != "warning"
        self._start = self._last = time.monotonic()
        self._bar: Any = None
        if show and (in_notebook() or sys.stderr.isatty()):
            from tqdm.auto import tqdm  # takes a while, and only bars need it

            tqdm.write(title, file=sys.stdout if in_notebook() else sys.stderr)
            self._bar = tqdm(total=total, initial=done, unit=f" {unit}", dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, count: int) -> None:
        """Show that so much more is done."""
        self._done += count
        self.to(self._done)

    def to(self, done: int, state: str = "", seconds: float = 10.0) -> None:
        """Show how far the job is.

        Args:
            done: how much, in all.
            state: what else there is to say; by default the rate.
            seconds: how old the last line must be for another one, unless the job is done.
        """
        if self._bar is not None:
            if state:  # in place of the rate
                self._bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{remaining}{postfix}]"
                self._bar.set_postfix_str(state, refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._show:
            now = time.monotonic()
            if done < self.total and now - self._last < seconds:
                return
            self._last, spent = now, now - self._start
            rate = (done - self._first) / max(spent, 1e-9)
            left = f"{(self.total - done) / rate:.0f} s left" if rate and done < self.total else f"{spent:.1f} s"
            state = state or f"{rate:,.0f} {self._unit}/s"
            counts = f"{done:,} of {self.total:,} {self._unit}"
            print(f"{self._title}: {counts}, {state}, {left}", file=sys.stderr, flush=True)


def shown(progress: bool) -> bool:
    """Return whether progress is shown: it was asked for, and there is somebody to see it.

    Args:
        progress: what the caller asked for; this is `runtime.progress` of what the call runs.
    """
    return progress and (in_notebook() or sys.stderr.isatty())


class _Printed(logging.Handler):
    """Prints messages: to the page in a notebook, which shows what stderr gets as if it were an error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the text of a message, to what is stderr by now."""
        print(record.getMessage(), file=sys.stdout if in_notebook() else sys.stderr, flush=True)


@contextmanager
def verbosity(level: Literal["debug", "warning"] | None) -> Iterator[None]:
    """Have `messages`, bars and lines in this process and those that it starts show more or less than they would.

    Args:
        level: debug for everything, warning for no progress, None for no change.
    """
    before = os.environ.get(_VARIABLE)
    if level is not None:
        os.environ[_VARIABLE] = level
    try:
        with messages():
            yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if before is not None:
            os.environ[_VARIABLE] = before


@contextmanager
def messages(show: bool = True) -> Iterator[None]:
    """Print what openbench logs within the block, a line for each message.

    Args:
        show: whether to print what is being done (INFO); otherwise only warnings and errors are printed.
    """
    log = logging.getLogger("openbench")
    level, handler = log.level, None
    if not any(isinstance(other, _Printed) for other in log.handlers):
        log.addHandler(handler := _Printed())
    if level != logging.DEBUG:  # which the user has set
        log.setLevel(_LEVELS.get(os.environ.get(_VARIABLE, ""), logging.INFO if show else logging.WARNING))
    try:
        yield
    finally:
        log.setLevel(level)
        if handler is not None:
            log.removeHandler(handler)


def duration(seconds: float) -> str:
    """Return a time in its two largest units, e.g. `3 h 20 min`."""
    whole = max(1, round(seconds))
    (large, unit), (small, part) = next(pair for pair in pairwise(_UNITS) if whole >= pair[0][1])
    left = whole % unit // part
    return f"{whole // unit} {large}" + f" {left} {small}" * bool(left)
