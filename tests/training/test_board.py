import sys
from dataclasses import replace
from pathlib import Path

import pytest

from openbench.errors import ConfigError
from openbench.training.loop._loop import train
from openbench.training.loop._progress import FOLDER

from .killing import train_until_killed
from .training_toys import QUIET, job

WATCHED = replace(QUIET, tensorboard=True)


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / FOLDER))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_shows_the_curve(tmp_path: Path) -> None:
    done = train(job(), tmp_path, WATCHED)
    curve = done.curve
    assert scalars(tmp_path, "train/loss") == [(row.step, pytest.approx(row.loss)) for row in curve]
    assert train(job(), tmp_path / "unwatched", QUIET).files == done.files
    accuracies = [(row.step, pytest.approx(row.val_accuracy)) for row in curve]
    assert scalars(tmp_path, "validation/accuracy") == accuracies


def test_a_resumed_training_goes_on_in_the_same_picture(tmp_path: Path) -> None:
    train_until_killed(job(), tmp_path, 2, WATCHED)
    curve = train(job(), tmp_path, WATCHED).curve
    assert scalars(tmp_path, "train/loss") == [(row.step, pytest.approx(row.loss)) for row in curve]


def test_missing_tensorboard_is_said_with_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install .*\[tensorboard\]'"):
        train(job(), tmp_path, WATCHED)
