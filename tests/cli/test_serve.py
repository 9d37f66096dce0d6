"""`serve` as users call it: a detector's own answers, and what is refused before a port is opened."""

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
