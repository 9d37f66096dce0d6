import sys
from dataclasses import replace
from pathlib import Path

import pytest

from openbench.errors import ConfigError
from openbench.training.loop._loop import train

from .killing import train_until_killed
from .training_toys import QUIET, job

WATCHED = replace(QUIET, tensorboard=True)


def test_tensorboard_shows_the_curve_of_a_training_that_was_killed_too(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_until_killed(job(), tmp_path, 2, WATCHED)
    done = train(job(), tmp_path, WATCHED)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("loss", "val_accuracy"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(row.step, pytest.approx(getattr(row, name))) for row in done.curve]
    assert train(job(), tmp_path / "unwatched", QUIET).files == done.files


def test_missing_tensorboard_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[tensorboard\]'"):
        train(job(), tmp_path, WATCHED)
