"""How far a training is: a bar on a terminal or in a notebook; elsewhere a line per epoch, and now and then within."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TextColumn

from openbench.progress import AS_IT_IS, SECONDS_BETWEEN_BARS, WIDE, Cell, bars, in_notebook
from openbench.training.loop.curve import EpochRow

_SECONDS_BETWEEN_LINES = 20.0


class Reporter(ABC):
    """Receives steps and epochs as they end."""

    @abstractmethod
    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """`done` steps of the whole training have ended; `loss` is the epoch's mean so far."""

    @abstractmethod
    def epoch(self, row: EpochRow) -> None:
        """An epoch has ended."""


class Silence(Reporter):
    """Says nothing."""

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Nothing."""

    def epoch(self, row: EpochRow) -> None:
        """Nothing."""


class Bar(Reporter):
    """A rich progress bar over the steps of the whole training, its title on a line above; it fits 60 columns."""

    def __init__(self, progress: Progress, title: str, done: int, total: int) -> None:
        self._progress = progress
        self._wide = progress.console.width >= WIDE
        progress.console.print(title, highlight=False, markup=False)
        self._task = progress.add_task("", total=total, completed=done, state="")
        self._accuracy = ""

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Move the bar."""
        rate = f", {images_per_second:,.0f} images/s" if self._wide else ""
        self._progress.update(self._task, completed=done, state=f"loss {loss:.4f}{self._accuracy}{rate}")

    def epoch(self, row: EpochRow) -> None:
        """Move the bar, and show the accuracy from now on."""
        self._accuracy = f", val {100 * row.val_accuracy:.2f} %"
        self.steps(row.step, row.loss, row.images_per_second)


def trainings_on(console: Console) -> Progress:
    """Return the bar of a training on a console, with its state behind it."""
    state = TextColumn("{task.fields[state]}", table_column=AS_IT_IS)
    return bars(console, after=[state])


class Lines(Reporter):
    """Plain lines, for logs: every epoch, and every 20 seconds within one; short epochs share a line."""

    within, between = _SECONDS_BETWEEN_LINES, 1.0  # seconds from one line to the next, in an epoch and at its end

    def __init__(self, title: str, done: int, total: int) -> None:
        self._title, self._first, self._total = title, done, total
        self._start = self._last = time.monotonic()

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Print a line if the last one is old."""
        if time.monotonic() - self._last >= self.within:
            self._print(done, f"loss {loss:.4f}, {images_per_second:,.0f} images/s")

    def epoch(self, row: EpochRow) -> None:
        """Print a line if the last one is a second old, or the training is over."""
        if time.monotonic() - self._last >= self.between or row.step == self._total:
            accuracy = f"val accuracy {100 * row.val_accuracy:.2f} %"
            self._print(
                row.step, f"epoch {row.epoch}, loss {row.loss:.4f}, {accuracy}, {row.images_per_second:,.0f} images/s"
            )

    def _print(self, done: int, state: str) -> None:
        self._last = time.monotonic()
        spent = self._last - self._start
        left = spent * (self._total - done) / max(done - self._first, 1)
        time_text = f"{left:.0f} s left" if done < self._total else f"{spent:.1f} s"
        self._tell(f"{self._title}: step {done:,} of {self._total:,}, {state}, {time_text}", done)

    def _tell(self, text: str, done: int) -> None:
        print(text, file=sys.stderr, flush=True)


class InCell(Lines):
    """A bar in the output of a notebook's cell, with the line beside it."""

    within = between = SECONDS_BETWEEN_BARS

    def __init__(self, title: str, done: int, total: int) -> None:
        super().__init__(title, done, total)
        self._cell = Cell(title, done, total)

    def _tell(self, text: str, done: int) -> None:
        self._cell.show(text, done)


@contextmanager
def reporter(title: str, done: int, total: int, show: bool) -> Iterator[Reporter]:
    """Yield what reports a training.

    Args:
        title: what is trained.
        done: steps that an earlier, interrupted process had taken.
        total: steps in all.
        show: whether anything is shown.
    """
    if not show:
        yield Silence()
    elif in_notebook():
        yield InCell(title, done, total)
    elif sys.stderr.isatty():
        with trainings_on(Console(stderr=True)) as progress:
            yield Bar(progress, title, done, total)
    else:
        yield Lines(title, done, total)
