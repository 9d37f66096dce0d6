"""The course of a training for TensorBoard."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from openbench.errors import ConfigError
from openbench.installation import pip_install
from openbench.training.loop.curve import EpochRow
from openbench.training.loop.progress import Reporter

FOLDER = "tensorboard"


class Board(Reporter):
    """Writes the running loss now and then, and every number of an epoch; steps are those of the whole training.

    Args:
        folder: of the checkpoint; events go to `tensorboard` in it.
        curve: epochs that an earlier, interrupted process had ended; what it wrote beyond them is not shown.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path, curve: Sequence[EpochRow]) -> None:
        # Imported here, since it takes two seconds and only users who ask for it have it installed.
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"runtime.tensorboard=true — TensorBoard cannot be imported: {error} — "
                f"{pip_install('tensorboard')}, or leave it out: curve.csv and curve.png are always written"
            ) from error
        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=curve[-1].step if curve else None)
        if curve:
            # A process may have been killed after an epoch was saved and before it was shown.
            self.epoch(curve[-1])

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Write the epoch's mean loss so far."""
        self._write("train/running_loss", loss, done)

    def epoch(self, row: EpochRow) -> None:
        """Write the epoch's row."""
        scalars = {
            "train/loss": row.loss,
            "train/learning_rate": row.lr,
            "train/images_per_second": row.images_per_second,
            "validation/accuracy": row.val_accuracy,
        }
        for name, value in scalars.items():
            self._write(name, value, row.step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()

    def _write(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)


@contextmanager
def board(folder: Path, curve: Sequence[EpochRow], shown: Reporter) -> Iterator[Reporter]:
    """Yield a reporter that passes everything to `shown` and TensorBoard."""
    writer = Board(folder, curve)
    try:
        yield Both(shown, writer)
    finally:
        writer.close()


class Both(Reporter):
    """Passes everything to two reporters."""

    def __init__(self, first: Reporter, second: Reporter) -> None:
        self._all = (first, second)

    def steps(self, done: int, loss: float, images_per_second: float) -> None:
        """Tell both."""
        for one in self._all:
            one.steps(done, loss, images_per_second)

    def epoch(self, row: EpochRow) -> None:
        """Tell both."""
        for one in self._all:
            one.epoch(row)
