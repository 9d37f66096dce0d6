"""`monitor` and `serve` as users meet them."""

import http.client
import importlib.util
import io
import json
import re
import signal
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import openbench
from openbench.__main__ import main
from tests.detect import tiny
from tests.forked import Forked


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sides = {"calibration": 0.0, "quiet": 0.0, "more": 0.0, "changed": 1.5}
    for seed, (name, mean) in enumerate(sides.items()):
        scores = np.random.default_rng(seed).normal(mean, size=200).astype(np.float32)
        (tmp_path / f"{name}.csv").write_text("file,score\n" + "".join(f"a.png,{score}\n" for score in scores))
    return tmp_path


def monitor(capsys, *arguments):
    """The exit code, what was printed, and the error message."""
    code = main(["monitor", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_no_alarm_while_nothing_changes(folder, capsys):
    code, said, _ = monitor(capsys, "calibration.csv", "quiet.csv")
    assert code == 0
    assert said.startswith("no alarm\n200 images against 200 calibration images\n")
    assert "the chance of ever reaching that while nothing changes is at most 1 %" in said


def test_a_change_ends_in_exit_code_3_and_a_line_of_json(folder, capsys):
    code, said, _ = monitor(capsys, "calibration.csv", "quiet.csv", "changed.csv", "--json")
    found = json.loads(said)
    assert code == 3
    assert said.count("\n") == 1
    assert (found["alarm"], found["images"]) == (True, 400)
    assert 200 < found["alarm_at"] < 240


def test_a_state_goes_on_from_call_to_call(folder, capsys):
    at_once = json.loads(monitor(capsys, "calibration.csv", "quiet.csv", "changed.csv", "--json", "--window", "50")[1])
    assert monitor(capsys, "calibration.csv", "quiet.csv", "--state", "life", "--window", "50")[0] == 0
    code, said, _ = monitor(capsys, "calibration.csv", "changed.csv", "--state", "life", "--json")
    assert (code, json.loads(said)) == (3, at_once)
    before = (folder / "life").read_bytes()
    code, _, told = monitor(capsys, "calibration.csv", "more.csv", "quiet.csv", "--state", "life")
    assert code == 2
    assert "'quiet.csv': this table was read before" in told
    assert (folder / "life").read_bytes() == before
    code, _, told = monitor(capsys, "calibration.csv", "more.csv", "--state", "life", "--level", "0.2")
    assert code == 2
    assert "--state life belongs to a monitor with level=0.01" in told
    assert monitor(capsys, "calibration.csv", "more.csv", "--state", "life", "--reset")[0] == 0


def test_the_picture_shows_the_alarm(folder, capsys):
    assert monitor(capsys, "calibration.csv", "changed.csv", "--plot", "drift.png")[0] == 3
    with Image.open("drift.png") as picture:
        shown = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    assert (shown == (0xD5, 0x5E, 0x00)).all(axis=1).sum() > 300  # the upright line, on three panels


def test_images_that_could_not_be_read_are_left_out_and_empty_cells_are_not(folder, capsys):
    import pandas as pd

    rows = [{"score": 0.5, "error": None}, {"score": None, "error": "not an image"}, {"score": 0.25, "error": None}]
    pd.DataFrame(rows).to_parquet("rows.parquet")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rows.csv").write_text("score,error\n0.5,\n,not an image\n0.25,\n")
    for name in ("rows.parquet", "rows.jsonl", "rows.csv"):
        assert json.loads(monitor(capsys, "calibration.csv", name, "--json")[1])["images"] == 2
    pd.DataFrame([*rows, {"score": None, "error": None}]).to_parquet("gap.parquet")
    (folder / "gap.csv").write_text("score,error\n0.5,\n,\n")
    for name in ("gap.parquet", "gap.csv"):
        code, _, told = monitor(capsys, "calibration.csv", name)
        assert (code, "is not a finite number" in told) == (2, True)
    # A row is counted among all rows of the file, those left out too.
    pd.DataFrame([*rows, {"score": float("inf"), "error": None}]).to_parquet("inf.parquet")
    assert "row 4: 'inf' in column 'score'" in monitor(capsys, "calibration.csv", "inf.parquet")[2]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", "scores\n1\n", "needs a column 'score' (found scores)"),
        ("a.csv", "score,error\n,bad\n\n1e999,\n", "row 2: '1e999' in column 'score' is not a finite number"),
        ("a.csv", "score\n1\n\x1b[2J\n", r"row 2: '\x1b[2J' in column 'score' is not a finite number"),
        ("a.jsonl", '{"score": 1' + "0" * 400 + "}\n", "row 1: '1000"),
        ("a.parquet", "score\n1\n", "table 'a.parquet' cannot be read"),
        ("a.txt", "1\n", "is not a table that can be read — allowed: .csv, .jsonl, .parquet"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(folder, capsys, name, content, told):
    (folder / name).write_text(content)
    code, said, message = monitor(capsys, "calibration.csv", name, "--state", "life", "--plot", "p.png")
    assert (code, said) == (2, "")
    assert told in message
    assert not (folder / "life").exists()
    assert not (folder / "p.png").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plot", "quiet.csv/drift.png"], "--plot 'quiet.csv/drift.png' cannot be written"),
        (["--plot", "life"], "allowed: a name that ends in"),
        (["--state", "."], "--state . is a folder"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_life_goes_on(folder, capsys, words, told):
    code, said, message = monitor(capsys, "calibration.csv", "quiet.csv", "--state", "life", *words)
    assert (code, said, told in message) == (2, "", True), message
    assert not (folder / "life").exists()


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def test_answers_are_those_of_the_detector(tmp_path, monkeypatch):
    detector = tiny.calibrated()
    monkeypatch.setattr(openbench, "load_detector", lambda path: detector)
    images, _ = tiny.images(3, 5)
    process = Forked(lambda: print(main(["serve", "detector", "--port", "0"])), tmp_path / "note")
    until, found = time.monotonic() + 600, None
    while found is None and time.monotonic() < until:
        time.sleep(0.02)
        note = tmp_path / "note"
        found = re.search(r"http://127.0.0.1:(\d+)\n", note.read_text() if note.exists() else "")
    with closing(http.client.HTTPConnection("127.0.0.1", int(found.group(1)), timeout=600)) as connection:
        for image in images:
            connection.request("POST", "/predict", png(image), {"Content-Type": "image/png"})
            (row,) = json.loads(connection.getresponse().read())["predictions"]
            assert row == json.loads(json.dumps(detector.predict(image).rows()[0]))
        connection.request("GET", "/")
        told = json.loads(connection.getresponse().read())
    assert told == {"promise": detector.promise, "alpha": 0.1, "classes": ["red", "green", "blue"]}
    process.kill(signal.SIGTERM)
    assert process.ended() == (0, f"listening on {found.group()}0\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "70000"], "'--port': 70000 is not in the range"),
        (["--batch", "0"], "serve.batch — found 0, allowed: a whole number ≥ 1"),
        (["--upload-s", "-1"], "serve.upload_s — found -1.0, allowed: a number > 0"),
    ],
)
def test_limits_that_cannot_hold_are_refused(capsys, arguments, told):
    assert main(["serve", "detector", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_without_the_libraries_the_command_that_installs_them_is_told(capsys, monkeypatch):
    monkeypatch.setattr("openbench.cli.commands.detector.find_spec", lambda name: None if name == "uvicorn" else name)
    assert importlib.util.find_spec("starlette") is not None
    assert main(["serve", "detector"]) == 2
    assert re.search(r"serve needs uvicorn, which is not installed — pip install .*\[serve\]", capsys.readouterr().err)


def test_a_detector_that_asks_for_a_group_is_refused(capsys, monkeypatch):
    groups = np.arange(199) % 2
    detector = tiny.detector().calibrate(tiny.images(199, 1), alpha=0.1, groups=[f"camera {g}" for g in groups])
    monkeypatch.setattr(openbench, "load_detector", lambda path: detector)
    assert main(["serve", "detector"]) == 2
    assert "detector 'detector' cannot score a single image: group 'None' was not calibrated" in capsys.readouterr().err


def test_monitor_takes_the_calibration_scores_of_a_detector(capsys, monkeypatch, tmp_path):
    detector = tiny.calibrated()
    monkeypatch.setattr(openbench, "load_detector", lambda path: detector)
    table = tmp_path / "scores.csv"
    table.write_text("score\n" + "".join(f"{score}\n" for score in detector.predict(tiny.images(50, 6)[0]).score))
    assert main(["monitor", "detector", str(table)]) == 0
    assert "50 images against 199 calibration images" in capsys.readouterr().out
    weighted = tiny.detector().calibrate(tiny.images(199, 1), alpha=0.1, weights=np.linspace(1, 2, 199))
    monkeypatch.setattr(openbench, "load_detector", lambda path: weighted)
    assert main(["monitor", str(Path("detector")), str(table)]) == 2
    assert "was calibrated with weights" in capsys.readouterr().err
