"""The curve of a training as CSV, as a picture, and as events for TensorBoard."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from openbench.errors import ConfigError, pip_install

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
    curve = pd.DataFrame(rows)
    marker = "o" if len(rows) < 20 else None
    above.plot(curve.epoch, curve.loss, color="C0", marker=marker)
    above.set_ylabel("training loss", color="C0")
    rates = above.twinx()
    rates.plot(curve.epoch, curve.lr, color="C7", linestyle="--")
    rates.set_ylabel("learning rate", color="C7")
    below.plot(curve.epoch, 100 * curve.val_accuracy, color="C2", marker=marker)
    below.axvline(best_epoch, color="C3", linewidth=1)
    kept = f"kept: epoch {best_epoch}, {100 * rows[best_epoch - 1].val_accuracy:.2f} %"
    below.set_title(kept, loc="right", fontsize="medium")
    below.set(xlabel="epoch", ylabel="ID validation accuracy, %")
    figure.suptitle(title)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


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
        add_scalars(writer, row)
    return writer


def add_scalars(writer: "SummaryWriter", row: EpochRow) -> None:
    """Write an epoch's numbers."""
    for name in ("loss", "lr", "val_accuracy", "images_per_second"):
        writer.add_scalar(name, getattr(row, name), row.step)
    writer.flush()
