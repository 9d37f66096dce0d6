"""How far a long job is: a bar in a notebook or on a terminal, a line now and then on stderr elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from openbench.say import Say, silent

_SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_BARS = 0.2  # a notebook's page is sent each of them
WIDE = 80  # columns from which on the bar's line has room for the rate
AS_IT_IS = Column(no_wrap=True)
_SHORTEST = 5  # characters of the bar
_NUMBERS, _RATE = 31, 16  # of the shortest bar, a count of ImageNet's images and the time left; of the rate

Advance = Callable[[int], None]


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Images per second of a task."""
        return Text(f"{task.speed:,.0f} images/s" if task.speed else "– images/s")


def bars(
    console: Console,
    *,
    before: Sequence[ProgressColumn] = (),
    after: Sequence[ProgressColumn] = (),
    count: Sequence[ProgressColumn] = (),
) -> Progress:
    """Return the one kind of bar on a console: it takes the room that the columns around it leave.

    Args:
        console: where it is shown.
        before: what stands before the bar, e.g. a title.
        after: what stands behind the time left.
        count: how much is done; by default as `3/10`.
    """
    return Progress(
        *before,
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=_SHORTEST)),
        *(count or [MofNCompleteColumn(table_column=AS_IT_IS)]),
        TimeRemainingColumn(compact=True, table_column=AS_IT_IS),
        *after,
        console=console,
        expand=True,
    )


def passes_on(console: Console) -> Progress:
    """Return the bar of a pass: its title is shortened where there is no room for it, and a wide one has the rate."""
    wide = console.width >= WIDE
    title = Column(no_wrap=True, overflow="ellipsis", max_width=console.width - (_NUMBERS + _RATE * wide))
    count = [MofNCompleteColumn(table_column=AS_IT_IS), *([_Rate(table_column=AS_IT_IS)] if wide else [])]
    return bars(console, before=[TextColumn("{task.description}", markup=False, table_column=title)], count=count)


def in_notebook() -> bool:
    """Return whether the code runs in a notebook's kernel, whose output is a page."""
    # IPython's own module is loaded wherever it runs; importing it would cost others half a second.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


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
    elif in_notebook():
        page = _Page(title, total, done)
        try:
            yield page
        finally:
            page.show()
    elif sys.stderr.isatty():
        with passes_on(Console(stderr=True)) as bar:
            task = bar.add_task(title, total=total, completed=done)
            yield lambda count: bar.advance(task, count)
    else:
        yield _Lines(title, total, done)


class _Pass:
    """How far a pass over images is, in words.

    Args:
        title: what is being done to what.
        total: images in all.
        done: images that an earlier, interrupted job had finished.
    """

    def __init__(self, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done, self.first = title, total, done, done
        self.start = self.last = time.monotonic()

    def due(self, count: int, seconds: float) -> bool:
        """Count more images; return whether all are done, or so many seconds have gone by since this was last so."""
        self.done += count
        now = time.monotonic()
        if self.done < self.total and now - self.last < seconds:
            return False
        self.last = now
        return True

    def __str__(self) -> str:
        spent = self.last - self.start
        rate = (self.done - self.first) / max(spent, 1e-9)
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate and self.done < self.total else f"{spent:.1f} s"
        return f"{self.title}: {self.done:,} of {self.total:,} images, {rate:,.0f} images/s, {left}"


class _Lines(_Pass):
    """Prints a line every few seconds and one at the end."""

    def __call__(self, count: int) -> None:
        if self.due(count, _SECONDS_BETWEEN_LINES):
            print(self, file=sys.stderr, flush=True)


class _Page(_Pass):
    """Moves a bar in the output of a notebook's cell."""

    def __init__(self, title: str, total: int, done: int) -> None:
        super().__init__(title, total, done)
        self._cell = Cell(str(self), done, total)

    def __call__(self, count: int) -> None:
        if self.due(count, SECONDS_BETWEEN_BARS):
            self.show()

    def show(self) -> None:
        """Show how far the pass is."""
        self._cell.show(str(self), self.done)


class Cell:
    """A bar in the output of a notebook's cell; the text beside it stays when the bar is full.

    Args:
        text: what stands beside it.
        done: how much is done.
        total: of how much.
    """

    def __init__(self, text: str, done: int, total: int) -> None:
        self._text, self._done, self._total = text, done, total
        # There only where a notebook runs.
        from IPython.display import display

        self._handle: Any = display(self, display_id=True)

    def show(self, text: str, done: int) -> None:
        """Move the bar and replace the text."""
        self._text, self._done = text, done
        self._handle.update(self)

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._done}" max="{self._total}"></progress> '
        return f"<div>{bar if self._done < self._total else ''}{escape(self._text)}</div>"


def shown(progress: bool) -> bool:
    """Return whether progress is shown: it was asked for, and there is somebody to see it.

    Args:
        progress: what the caller asked for; this is `runtime.progress` of what the call runs.
    """
    return progress and (in_notebook() or sys.stderr.isatty())


def say_of(progress: bool) -> Say:
    """Return what tells the user what is being done, a line each; silent where progress is not shown.

    Args:
        progress: what the caller asked for.
    """
    if not shown(progress):
        return silent
    return _tell_page if in_notebook() else _tell_terminal


def _tell_page(text: str) -> None:
    """A line in the output of the cell; a notebook shows what stderr says as if it were an error."""
    print(text, flush=True)


def _tell_terminal(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
