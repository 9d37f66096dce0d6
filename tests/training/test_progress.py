import csv
import io
from pathlib import Path

import pytest
from PIL import Image

from openbench import progress
from openbench.core.runtime import Runtime
from openbench.progress import reported
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import train
from openbench.training.loop._progress import EpochRow, Reporter, as_csv, as_png

from .training_toys import QUIET, job

ROWS = [EpochRow(1, 5, 0.1, 1.5, 0.25, 900.0, 0.3), EpochRow(2, 10, 1 / 3, 0.75, 0.625, 1000.0, 0.2)]


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress.time, "monotonic", made.monotonic)
    return made


def test_lines_tell_loss_accuracy_rate_and_remaining_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with reported("train toy", 20, unit="steps") as shown:
        report = Reporter(shown)
        clock.now += 0.1
        report.epoch(ROWS[0])  # a short epoch shares a line with the next
        clock.now += 5.9
        report.epoch(ROWS[1])
        clock.now += 25
        report.steps(15, 0.5, 1234.0)
        report.steps(16, 0.5, 1234.0)
        report.steps(20, 0.5, 1234.0)  # the last step is told with its epoch
    # 10 of 20 steps took 6 seconds, 15 took 31.
    assert capsys.readouterr().err.splitlines() == [
        "train toy: 10 of 20 steps, epoch 2, loss 0.7500, val accuracy 62.50 %, 1,000 images/s, 6 s left",
        "train toy: 15 of 20 steps, loss 0.5000, val accuracy 62.50 %, 1,234 images/s, 10 s left",
    ]


def test_curve_reads_back_from_csv_as_it_was() -> None:
    read = list(csv.DictReader(io.StringIO(as_csv(ROWS).decode())))
    back = [EpochRow(int(r.pop("epoch")), int(r.pop("step")), **{k: float(v) for k, v in r.items()}) for r in read]
    assert back == ROWS


def test_picture_of_the_curve_is_an_image_and_shows_the_numbers() -> None:
    content = as_png(ROWS, "toy", 2)
    assert Image.open(io.BytesIO(content)).format == "PNG"
    assert as_png([ROWS[0], EpochRow(2, 10, 1 / 3, 1.4, 0.25, 1000.0, 0.2)], "toy", 2) != content


def test_a_training_leaves_the_picture_of_its_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "as_png", as_png)  # elsewhere trainings are spared it
    made = job()
    done = train(made, tmp_path, QUIET)
    assert (tmp_path / "curve.png").read_bytes() == as_png(done.curve, str(made), done.best_epoch)


def test_training_reports_on_stderr_and_leaves_stdout_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(job(), tmp_path, Runtime(device="cpu"))
    out, err = capsys.readouterr()
    assert out == ""
    assert "train toy on toys with ToyEntropy, seed 0: 20 of 20 steps, epoch 4" in err
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 5
