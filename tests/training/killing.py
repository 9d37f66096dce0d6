"""Trainings that end as a kill would end them, in this process."""

from pathlib import Path

import pytest

from openbench.core.runtime import Runtime
from openbench.training.base import TrainingJob
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import train

from .training_toys import QUIET


class KilledError(Exception):
    """Stands for a process that ends between two epochs."""


def train_until_killed(
    made: TrainingJob, folder: Path, epochs: int, settings: Runtime = QUIET, start: Path | None = None
) -> None:
    """Train until some epochs are on disk, then end as a kill would: nothing is cleaned up."""
    write, count = loop.write_whole, [0]

    def counted(path: Path, content: bytes) -> None:
        write(path, content)
        count[0] += path.name == "curve.csv"
        if count[0] == epochs:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "write_whole", counted)
        with pytest.raises(KilledError):
            train(made, folder, settings, start)
