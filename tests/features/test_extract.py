"""One pass over a split: rows in order, nothing lost, no number that is not finite."""

import io
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console

from openbench import progress
from openbench.core.request import Field, Perturb, Request
from openbench.errors import DataError, FieldError
from openbench.features.columns import Column, extracted_with, pass_for, read_by
from openbench.features.extract import extract, part_of
from openbench.progress import passes_on, reporting

from .feature_toys import Pixels, toy_backbone, toy_split

LOGITS, FEATURES = Column(Field.LOGITS), Column(Field.FEATURES)


def joined(column: Column, start: int = 0, batch_size: int = 7, workers: int = 0) -> NDArray[np.float32]:
    split = part_of(toy_split(), start)
    return np.concatenate([rows[column] for rows in extract(toy_backbone(), split, (column,), batch_size, workers)])


def test_rows_do_not_depend_on_batch_size_or_workers() -> None:
    whole = joined(LOGITS)
    np.testing.assert_allclose(joined(LOGITS, batch_size=37), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(joined(LOGITS, workers=2), whole)


def test_the_rest_of_a_split_is_its_later_rows() -> None:
    np.testing.assert_allclose(joined(LOGITS, start=11), joined(LOGITS)[11:], rtol=1e-5, atol=1e-6)
    rest = part_of(toy_split(), 11)
    assert len(rest) == 26
    assert rest.keys[0] == "toy/00011.png"
    assert rest.labels[0] == 11 % 3
    with pytest.raises(IndexError):
        _ = rest.items[26]


@dataclass
class Marked(Pixels):
    """Image 20 is white, the others black."""

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return np.full((8, 8, 3), 255 if index == 20 else 0, dtype=np.uint8)


@pytest.mark.parametrize("start", [0, 9])
def test_an_output_that_is_not_finite_names_the_split_and_the_first_image(start: int) -> None:
    backbone = toy_backbone()
    inner = backbone.outputs

    def spoilt(images: torch.Tensor, request: Request) -> object:
        outputs = inner(images, request)
        outputs.features[images.mean((1, 2, 3)) > 0, 3] = float("inf")
        return outputs

    backbone.outputs = spoilt  # type: ignore[method-assign,assignment]
    split = part_of(replace(toy_split(), items=Marked(37)), start)
    with pytest.raises(DataError, match=r"'toy' \(id_test\): features is NaN or infinite.*'toy/00020\.png'"):
        list(extract(backbone, split, (LOGITS, FEATURES), 8))


def test_names_tell_layers_reductions_and_steps_apart() -> None:
    step = Perturb(1000.0, 0.0014)
    columns = [
        LOGITS,
        FEATURES,
        Column(Field.LOGITS, perturb=step),
        Column(Field.LOGITS, perturb=replace(step, kind="peak")),
        Column(Field.LOGITS, perturb=replace(step, temperature=1.0)),
        Column(Field.MAPS, "stage4", "gram"),
        Column(Field.MAPS, "stage4", "mean"),
        Column(Field.MAPS, "stage3", "mean"),
    ]
    assert len({c.name for c in columns}) == len(columns)
    assert LOGITS.name == "logits"
    assert columns[5].name == "maps.stage4.gram"
    assert columns[2].name.startswith("logits.")


def test_a_pass_for_some_columns_reads_just_these() -> None:
    request = Request(
        fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("stage1", "stage2"), pool="max", perturb=Perturb(1.0, 0.1)
    )
    assert read_by(pass_for(read_by(request))) == read_by(request)
    assert {c.field for c in extracted_with(request)} == {Field.LOGITS, Field.FEATURES, Field.MAPS}


def test_columns_of_two_passes_are_refused() -> None:
    with pytest.raises(FieldError, match="cannot come from one pass"):
        pass_for((LOGITS, Column(Field.LOGITS, perturb=Perturb())))


def test_away_from_a_terminal_progress_is_lines_with_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("toy", 100, done=40) as advance:
        advance(30)
        advance(30)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("toy: 100 of 100 images, ")
    assert "images/s" in line


def test_the_rate_is_that_of_the_images_of_this_job_from_the_first_moment(capsys, monkeypatch) -> None:
    clock = SimpleNamespace(monotonic=iter((8.0, 8.25, 10.0)).__next__)
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0)
    with reporting("toy", 100, done=40) as advance:
        advance(10)
        advance(50)
    assert capsys.readouterr().err.splitlines() == [
        "toy: 50 of 100 images, 40 images/s, 1 s left",
        "toy: 100 of 100 images, 30 images/s, 2.0 s",
    ]


def test_on_a_terminal_progress_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with reporting("toy", 100) as advance:
        advance(100)
    assert "100/100" in capsys.readouterr().err


def test_in_a_notebook_progress_is_a_bar_in_the_cell(capsys, monkeypatch):
    cell = []
    handle = SimpleNamespace(update=lambda shown: cell.append(shown._repr_html_()))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object())))
    display = SimpleNamespace(display=lambda shown, display_id: handle if display_id else None)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_BARS", 0)
    with reporting("<toy>", 100, done=10) as advance:
        advance(30)
        advance(60)
    assert cell[0].startswith('<div><progress value="40" max="100"></progress> &lt;toy&gt;: 40 of 100 images, ')
    assert "left" in cell[0]
    assert cell[-1].startswith("<div>&lt;toy&gt;: 100 of 100 images, ")
    assert capsys.readouterr() == ("", "")


def test_a_pass_that_stops_says_how_far_it_came(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0)
    with reporting("toy", 100) as advance:
        advance(0)
    assert capsys.readouterr().err.startswith("toy: 0 of 100 images, 0 images/s")


def test_progress_can_be_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting("toy", 10, show=False) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("title", ["tiny on [a] [/b] (near)", "resnet20_cifar10 on tiny_imagenet (ood_val)"])
def test_the_bar_has_count_and_time_left_in_one_line_at_any_width(width, title):
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width)
    with passes_on(console) as shown:
        shown.live.auto_refresh = False
        shown.add_task(title, total=1_281_167, completed=640_000)
        lines = console.render_lines(shown.get_renderable(), pad=False)
    [line] = ["".join(segment.text for segment in line).rstrip() for line in lines]
    assert len(line) <= width
    assert "━━━" in line
    assert "640000/1281167" in line
    assert line.endswith("--:--")  # the time left
    assert line.startswith(title[:16])
