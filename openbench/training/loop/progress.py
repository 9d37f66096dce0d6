"""The course of a training: rows of epochs as CSV and picture, a bar or lines while it runs, events for TensorBoard."""

import csv
import io
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn

from openbench.errors import ConfigError
from openbench.installation import pip_install
from openbench.progress import AS_IT_IS, SECONDS_BETWEEN_BARS, WIDE, Cell, bars, in_notebook

_SECONDS_BETWEEN_LINES = 20.0
FOLDER = "tensorboard"


@dataclass(frozen=True)
class EpochRow:
    """The results of one epoch.

    Args:
        epoch: counted from 1.
        step: steps taken so far.
        lr: learning rate of the epoch's last step.
        loss: mean training loss over the epoch's images.
        val_accuracy: on the ID validation split after the epoch, in [0, 1].
        images_per_second: training images, validation excluded.
        seconds: wall time of the epoch, validation included.
    """

    epoch: int
    step: int
    lr: float
    loss: float
    val_accuracy: float
    images_per_second: float
    seconds: float


def as_csv(rows: Sequence[EpochRow]) -> bytes:
    """Return the rows as CSV with a header, one line per epoch."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [f.name for f in fields(EpochRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue().encode()


def as_png(rows: Sequence[EpochRow], title: str, best_epoch: int) -> bytes:
    """Return a picture of loss and learning rate above, validation accuracy with the epoch kept below."""
    # Imported here, since it takes half a second and only a finished training needs it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    epochs = [row.epoch for row in rows]
    marker = "o" if len(rows) < 20 else None
    above.plot(epochs, [row.loss for row in rows], color="C0", marker=marker)
    above.set_ylabel("training loss", color="C0")
    rates = above.twinx()
    rates.plot(epochs, [row.lr for row in rows], color="C7", linestyle="--")
    rates.set_ylabel("learning rate", color="C7")
    below.plot(epochs, [100 * row.val_accuracy for row in rows], color="C2", marker=marker)
    best = next(row for row in rows if row.epoch == best_epoch)
    below.axvline(best.epoch, color="C3", linewidth=1)
    below.annotate(
        f"kept: epoch {best.epoch}, {100 * best.val_accuracy:.2f} %",
        (best.epoch, 100 * best.val_accuracy),
        xytext=(0.98, 0.05),
        textcoords="axes fraction",
        horizontalalignment="right",
    )
    below.set_ylabel("ID validation accuracy, %")
    below.set_xlabel("epoch")
    figure.suptitle(title)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


class Reporter:
    """Receives steps and epochs as they end; this one says nothing."""

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """`done` steps of the whole training have ended; `loss` is the epoch's mean so far."""

    def epoch(self, row: EpochRow) -> None:
        """An epoch has ended."""


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
        yield Reporter()
    elif in_notebook():
        yield InCell(title, done, total)
    elif sys.stderr.isatty():
        with trainings_on(Console(stderr=True)) as progress:
            yield Bar(progress, title, done, total)
    else:
        yield Lines(title, done, total)


class Board(Reporter):
    """Writes the running loss now and then, and every number of an epoch; steps are those of the whole training.

    Args:
        folder: of the checkpoint; events go to `tensorboard` in it.
        curve: epochs that an earlier, interrupted process had ended; what it wrote beyond them is not shown.
        shown: a reporter that everything is passed on to.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, curve: Sequence[EpochRow], shown: Reporter) -> None:
        # Imported here, since it takes two seconds and only users who ask for it have it installed.
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"runtime.tensorboard=true — TensorBoard cannot be imported: {error} — "
                f"{pip_install('tensorboard')}, or leave it out: curve.csv and curve.png are always written"
            ) from error
        self._shown = shown
        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=curve[-1].step if curve else None)
        if curve:
            # A process may have been killed after an epoch was saved and before it was written here.
            self._write(curve[-1])

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Write the epoch's mean loss so far."""
        self._shown.steps(done, loss, images_per_second)
        self._writer.add_scalar("train/running_loss", loss, done)

    def epoch(self, row: EpochRow) -> None:
        """Write the epoch's row."""
        self._shown.epoch(row)
        self._write(row)

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def _write(self, row: EpochRow) -> None:
        self._writer.add_scalar("train/loss", row.loss, row.step)
        self._writer.add_scalar("train/learning_rate", row.lr, row.step)
        self._writer.add_scalar("train/images_per_second", row.images_per_second, row.step)
        self._writer.add_scalar("validation/accuracy", row.val_accuracy, row.step)
        self._writer.flush()
