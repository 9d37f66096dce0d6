"""How far a long pass is: a bar on a terminal, a line now and then elsewhere; always on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

_SECONDS_BETWEEN_LINES = 10.0
_WIDE = 80  # columns from which on the bar's line has room for the rate
_SHORTEST = 5  # characters of the bar
_NUMBERS, _RATE = 31, 16  # of the shortest bar, a count of ImageNet's images and the time left; of the rate

Advance = Callable[[int], None]


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Images per second of a task."""
        return Text(f"{task.speed:,.0f} images/s" if task.speed else "– images/s")


def bars(console: Console) -> Progress:
    """Return the bar's columns on a console: count and time left as they are, bar and title in the room they leave."""
    as_it_is, wide = Column(no_wrap=True), console.width >= _WIDE
    title = Column(no_wrap=True, overflow="ellipsis", max_width=console.width - (_NUMBERS + _RATE * wide))
    return Progress(
        TextColumn("{task.description}", table_column=title),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=_SHORTEST)),
        MofNCompleteColumn(table_column=as_it_is),
        *([_Rate(table_column=as_it_is)] if wide else []),
        TimeRemainingColumn(compact=True, table_column=as_it_is),
        console=console,
        expand=True,
    )


@contextmanager
def reporting(title: str, total: int, *, done: int = 0, show: bool = True) -> Iterator[Advance]:
    """Yield a function to call with the number of images just finished.

    Args:
        title: what is being done to what.
        total: images in all.
        done: images that an earlier, interrupted job had finished.
        show: whether anything is shown.
    """
    if not show:
        yield lambda _: None
    elif sys.stderr.isatty():
        with bars(Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total, completed=done)
            yield lambda count: bar.advance(task, count)
    else:
        yield _Lines(title, total, done)


class _Lines:
    """Prints a line every few seconds and one at the end."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done, self.first = title, total, done, done
        self.start = self.last = time.monotonic()

    def __call__(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        finished = self.done >= self.total
        if not finished and now - self.last < _SECONDS_BETWEEN_LINES:
            return
        self.last = now
        rate = (self.done - self.first) / max(now - self.start, 1e-9)
        left = f"{now - self.start:.1f} s" if finished else f"{(self.total - self.done) / rate:.0f} s left"
        print(
            f"{self.title}: {self.done:,} of {self.total:,} images, {rate:,.0f} images/s, {left}",
            file=sys.stderr,
            flush=True,
        )
