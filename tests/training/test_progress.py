import csv
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from openbench import progress
from openbench.core.runtime import Runtime
from openbench.errors import ConfigError
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import EpochRow, as_csv, as_png, train

from .training_toys import QUIET, job, train_until_killed

ROWS = [EpochRow(1, 5, 0.1, 1.5, 0.25, 900.0, 0.3), EpochRow(2, 10, 1 / 3, 0.75, 0.625, 1000.0, 0.2)]


def test_lines_tell_loss_accuracy_rate_and_remaining_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, to = [100.0], progress.Report.to

    def ten_seconds_later(report: progress.Report, *arguments, **named) -> None:
        now[0] += 10
        to(report, *arguments, **named)

    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.Report, "to", ten_seconds_later)
    monkeypatch.setattr(loop, "_CHECK_EVERY", 3)
    curve = train(job(), tmp_path, Runtime(device="cpu")).curve
    first, accuracy = f"loss {curve[0].loss:.4f}", f", val accuracy {100 * curve[0].val_accuracy:.2f} %"
    lines = [re.sub(r"[\d,]+ images", "N images", line) for line in capsys.readouterr().err.splitlines()]
    title = "train toy on toys with ToyEntropy, seed 0: "
    # A step is told after 20 seconds, an epoch after one.
    assert lines[:3] == [
        f"{title}5 of 20 steps, {first}, N images/s, 60 s left",
        f"{title}5 of 20 steps, epoch 1, {first}{accuracy}, N images/s, 90 s left",
        f"{title}10 of 20 steps, loss {curve[1].loss:.4f}{accuracy}, N images/s, 50 s left",
    ]
    assert len(lines) == 7  # the last step is told with its epoch


def test_curve_reads_back_from_csv_as_it_was() -> None:
    read = list(csv.DictReader(io.StringIO(as_csv(ROWS).decode())))
    back = [EpochRow(int(r.pop("epoch")), int(r.pop("step")), **{k: float(v) for k, v in r.items()}) for r in read]
    assert back == ROWS


def test_a_training_leaves_the_picture_of_its_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "as_png", as_png)  # elsewhere trainings are spared it
    made = job()
    done = train(made, tmp_path, QUIET)
    assert (tmp_path / "curve.png").read_bytes() == as_png(done.curve, str(made), done.best["epoch"])


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
