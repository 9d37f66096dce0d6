import csv
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from rich.console import Console

from openbench.training.loop import loop, progress
from openbench.training.loop.loop import TrainingSettings, train
from openbench.training.loop.progress import Bar, EpochRow, as_csv, as_png, reporter, trainings_on

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
    with reporter("train toy", 0, 20, show=True) as report:
        clock.now += 6
        report.epoch(ROWS[0])
    line = capsys.readouterr().err
    # 5 of 20 steps took 6 seconds.
    assert line == ("train toy: step 5 of 20, epoch 1, loss 1.5000, val accuracy 25.00 %, 900 images/s, 18 s left\n")


def test_remaining_time_counts_only_the_steps_of_this_process(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with reporter("train toy", 5, 20, show=True) as report:
        clock.now += 6
        report.epoch(ROWS[1])
    assert "12 s left" in capsys.readouterr().err


def test_short_epochs_share_a_line_and_the_last_always_has_one(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with reporter("train toy", 0, 10, show=True) as report:
        clock.now += 0.1
        report.epoch(ROWS[0])
        report.steps(7, 0.5, 10.0)
        report.epoch(ROWS[1])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "step 10 of 10" in lines[0]


def test_long_epochs_report_within(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with reporter("train toy", 0, 100, show=True) as report:
        clock.now += 25
        report.steps(50, 0.5, 1234.0)
    assert "step 50 of 100, loss 0.5000, 1,234 images/s, 25 s left" in capsys.readouterr().err


def test_in_a_notebook_a_training_is_a_bar_in_the_cell(clock, capsys, monkeypatch) -> None:
    cell = []
    handle = SimpleNamespace(update=lambda shown: cell.append(shown._repr_html_()))
    display = SimpleNamespace(display=lambda shown, display_id: cell.append(shown._repr_html_()) or handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with reporter("train <toy>", 0, 10, show=True) as report:
        clock.now += 6
        report.epoch(ROWS[0])
        report.steps(7, 0.5, 10.0)  # too soon after the last one
        report.epoch(ROWS[1])
    assert cell[0] == '<div><progress value="0" max="10"></progress> train &lt;toy&gt;</div>'
    assert cell[1].startswith(
        '<div><progress value="5" max="10"></progress> train &lt;toy&gt;: step 5 of 10, epoch 1, '
    )
    assert cell[2].startswith("<div>train &lt;toy&gt;: step 10 of 10, epoch 2, ")
    assert len(cell) == 3
    assert capsys.readouterr() == ("", "")


def test_silence_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with reporter("train toy", 0, 10, show=False) as report:
        report.steps(5, 1.0, 1.0)
        report.epoch(ROWS[1])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_bar_has_count_time_left_and_state_in_one_line_at_any_width(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    with trainings_on(console) as shown:
        shown.live.auto_refresh = False
        bar = Bar(shown, "train resnet20_cifar on cifar10 with CrossEntropy, seed 0", 0, 39_100)
        bar.epoch(EpochRow(1, 391, 0.1, 1.4832, 0.4521, 1234.0, 0.3))
        bar.steps(31_280, 0.2214, 1234.0)
        lines = console.render_lines(shown.get_renderable(), pad=False)
    [line] = ["".join(segment.text for segment in line).rstrip() for line in lines]
    assert len(line) <= width
    assert "━━━━━" in line
    assert "31280/39100" in line
    assert "loss 0.2214, val 45.21 %" in line
    assert "--:--" in line or "0:0" in line  # the time left
    assert ("1,234 images/s" in line) == (width >= 80)
    assert "…" not in line


def test_bar_says_above_it_what_is_trained() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with trainings_on(console) as shown:
        Bar(shown, "train toy [x], seed 0", 0, 10)
    assert "train toy [x], seed 0" in console.file.getvalue()


def test_curve_reads_back_from_csv_as_it_was() -> None:
    read = list(csv.DictReader(io.StringIO(as_csv(ROWS).decode())))
    back = [EpochRow(int(r.pop("epoch")), int(r.pop("step")), **{k: float(v) for k, v in r.items()}) for r in read]
    assert back == ROWS


@pytest.mark.slow
def test_picture_of_the_curve_is_an_image_and_shows_the_numbers() -> None:
    picture = Image.open(io.BytesIO(as_png(ROWS, "toy", 2)))
    assert picture.format == "PNG"
    other = as_png([ROWS[0], EpochRow(2, 10, 1 / 3, 1.4, 0.25, 1000.0, 0.2)], "toy", 2)
    assert as_png(ROWS, "toy", 2) == as_png(ROWS, "toy", 2)
    assert other != as_png(ROWS, "toy", 2)


@pytest.mark.slow
def test_a_training_leaves_the_picture_of_its_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "as_png", as_png)  # elsewhere trainings are spared it
    made = job()
    done = train(made, tmp_path, QUIET)
    assert (tmp_path / "curve.png").read_bytes() == as_png(done.curve, str(made), done.best_epoch)


def test_training_reports_on_stderr_and_leaves_stdout_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(job(), tmp_path, TrainingSettings(torch.device("cpu")))
    out, err = capsys.readouterr()
    assert out == ""
    assert "train toy on toys with ToyEntropy, seed 0: step 20 of 20, epoch 4" in err
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 5
