"""The curve of a training as CSV and picture, its progress report, and events for TensorBoard."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from openbench.errors import ConfigError, pip_install
from openbench.progress import Report

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
    """Reports steps and epochs as they end, and writes them as events for TensorBoard if that is asked for.

    Args:
        report: shows the progress.
        folder: of the checkpoint, where events go to `tensorboard`; None: no events.
        curve: epochs that an interrupted process had ended; its events of later steps are hidden.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, report: Report, folder: Path | None = None, curve: Sequence[EpochRow] = ()) -> None:
        self._report, self._accuracy = report, ""
        self._writer = None if folder is None else _event_writer(folder, curve[-1].step if curve else None)
        if curve:
            # A process may have been killed after it saved an epoch and before it wrote its events.
            self._write(curve[-1])

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Report that `done` steps of the whole training have ended; `loss` is the epoch's mean so far."""
        if done < self._report.total:
            state = f"loss {loss:.4f}{self._accuracy}, {images_per_second:,.0f} images/s"
            self._report.to(done, state, seconds=20.0)
        if self._writer is not None:
            self._writer.add_scalar("train/running_loss", loss, done)

    def epoch(self, row: EpochRow) -> None:
        """Report that an epoch has ended; short ones share a line."""
        self._accuracy = f", val accuracy {100 * row.val_accuracy:.2f} %"
        state = f"epoch {row.epoch}, loss {row.loss:.4f}{self._accuracy}, {row.images_per_second:,.0f} images/s"
        self._report.to(row.step, state, seconds=1.0)
        self._write(row)

    def close(self) -> None:
        """Close the file of events."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, row: EpochRow) -> None:
        if self._writer is None:
            return
        self._writer.add_scalar("train/loss", row.loss, row.step)
        self._writer.add_scalar("train/learning_rate", row.lr, row.step)
        self._writer.add_scalar("train/images_per_second", row.images_per_second, row.step)
        self._writer.add_scalar("validation/accuracy", row.val_accuracy, row.step)
        self._writer.flush()


def _event_writer(folder: Path, resumed_at: int | None) -> Any:
    # Imported here, since it takes two seconds and only users who ask for it have it installed.
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            f"runtime.tensorboard=true, but TensorBoard cannot be imported ({error}) — "
            f"{pip_install('tensorboard')}, or leave it out: curve.csv and curve.png are always written"
        ) from error
    return SummaryWriter(str(folder / FOLDER), purge_step=resumed_at)
