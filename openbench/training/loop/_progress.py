"""The curve of a training as CSV and picture, its progress report, and events for TensorBoard."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from openbench.errors import ConfigError, pip_install
from openbench.progress import Report

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode()


def as_png(rows: Sequence[EpochRow], title: str, best_epoch: int) -> bytes:
    """Return a picture: loss and learning rate above, validation accuracy and the best epoch below."""
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
    below.set_title(f"kept: epoch {best.epoch}, {100 * best.val_accuracy:.2f} %", loc="right", fontsize="medium")
    below.set_ylabel("ID validation accuracy, %")
    below.set_xlabel("epoch")
    figure.suptitle(title)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


class Reporter:
    """Reports steps and epochs as they end.

    Args:
        report: shows the progress.
        events: receives the epochs' scalars; None where TensorBoard is not asked for.
    """

    def __init__(self, report: Report, events: "SummaryWriter | None" = None) -> None:
        self._report, self._events, self._accuracy = report, events, ""

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Report that `done` steps of the whole training have ended; `loss` is the epoch's mean so far."""
        if done < self._report.total:
            state = f"loss {loss:.4f}{self._accuracy}, {images_per_second:,.0f} images/s"
            self._report.to(done, state, seconds=20.0)

    def epoch(self, row: EpochRow) -> None:
        """Report that an epoch has ended; short ones share a line."""
        self._accuracy = f", val accuracy {100 * row.val_accuracy:.2f} %"
        state = f"epoch {row.epoch}, loss {row.loss:.4f}{self._accuracy}, {row.images_per_second:,.0f} images/s"
        self._report.to(row.step, state, seconds=1.0)
        if self._events is not None:
            _add_scalars(self._events, row)


def events_in(folder: Path, rows: Sequence[EpochRow]) -> "SummaryWriter":
    """Return a writer of events for TensorBoard that has the rows, in place of what an interrupted process wrote.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    # Imported here, since it takes two seconds and only users who ask for it have it installed.
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(f"runtime.tensorboard=true, but {error} — {pip_install('tensorboard')}") from error
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0)
    for row in rows:
        _add_scalars(writer, row)
    return writer


def _add_scalars(writer: "SummaryWriter", row: EpochRow) -> None:
    for name in ("loss", "lr", "val_accuracy", "images_per_second"):
        writer.add_scalar(name, getattr(row, name), row.step)
    writer.flush()
