"""Commands that read records, beside one bad file of every kind: it is named, and the others are shown."""

import json
import os

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from openbench.__main__ import main
from openbench.cli.output import say_left_out
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import RecordError
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore

from .records import make_record, with_method

NAME = "bad.json"


def _edited(path, text):
    path.write_text(text.replace("0.75", "0.76"))


def _elsewhere(path, text):
    folder = path.parents[1] / "other"
    folder.mkdir()
    (folder / f"{json.loads(text)['run_id']}.json").write_text(text)


def _circle(path, text):
    (path.parents[1] / "circle").symlink_to("circle")


# What lies there → what is said of it. Each is given the text of a record that is fine.
KINDS = {
    "edited digit": (_edited, "has changed since it was written"),
    "pipe": (lambda path, text: os.mkfifo(path), "found a pipe or a device"),
    "folder in a circle": (_circle, "the folder cannot be read"),
    "copy in another folder": (_elsewhere, "the record inside belongs in 'toy/tiny/knn'"),
    "strange name": (
        lambda path, text: path.with_name("a b\x1b.json").write_text(text),
        "not in the place of a record",
    ),
}


def split(name, role, shift):
    rng = np.random.default_rng(len(name))
    n = 40
    labels = np.arange(n) % 3 if role.is_id else np.full(n, -1)
    return SetScores.of_split(
        name, role, rng.normal(shift, 1, n).astype(np.float32), labels, np.where(np.arange(n) % 5, labels, 1)
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Two records with kept scores; returns the results, the commands that read them find them by themselves."""
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    splits = [split("toy", Role.ID_TEST, 0), split("toy", Role.ID_VAL, 0), split("v", Role.OOD_VAL, 1)]
    splits += [split("a", Role.NEAR, 1), split("b", Role.NEAR, 1), split("c", Role.FAR, 2)]
    for record in (make_record(), with_method(make_record(), "msp")):
        RecordStore(tmp_path / "results").write(record)
        ScoreStore(tmp_path / "cache" / "scores").write(record.run_id, splits)
    return tmp_path / "results"


def spoil(results, kind):
    write, said = KINDS[kind]
    good = RecordStore(results).path(make_record())
    write(good.with_name(NAME), good.read_text())
    return said


COMMANDS = (
    ["leaderboard"],
    ["risk", "toy"],
    ["leaderboard", "--check"],
    ["leaderboard", "--plots"],
    ["leaderboard", "--view", "overview", "--format", "csv"],
    ["thresholds", "toy"],
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_names_it_once_and_shows_the_others(place, kind, monkeypatch, capsys):
    monkeypatch.chdir(place)
    # What pictures show is tested where they are: here they are only written.
    monkeypatch.setattr(Figure, "savefig", lambda self, stream, **_: Image.new("RGB", (1, 1)).save(stream, "PNG"))
    main(["leaderboard"])
    capsys.readouterr()
    said = spoil(place, kind)
    for command in COMMANDS if kind == "edited digit" else COMMANDS[:2]:
        code = main(command)
        shown = capsys.readouterr()
        assert code == 2, command
        assert shown.err.count(said) == 1, (command, shown.err)
        assert shown.err.count("1 file was left out") == 1, command
        assert "Traceback" not in shown.err
        assert "\x1b" not in shown.out + shown.err
    page = (place / "leaderboard/toy.md").read_text()
    assert "| knn |" in page
    assert "| msp |" in page
    assert said.partition("'")[0] in (place / "leaderboard/README.md").read_text()


@pytest.mark.parametrize("command", ["risk", "thresholds"])
def test_a_run_without_scores_is_named_and_the_others_are_compared(place, command, capsys):
    lost = ScoreStore(place.parent / "cache" / "scores").path(make_record().run_id)
    lost.unlink()
    assert main([command, "toy"]) == 2
    shown = capsys.readouterr()
    assert "msp" in shown.out
    assert f"scores of run {make_record().run_id} not found" in shown.err
    assert "1 file was left out" in shown.err


def test_a_folder_of_pages_that_is_a_link_is_not_written_through(place, tmp_path, capsys):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/README.md").write_text("mine")
    (place / "leaderboard").symlink_to(tmp_path / "home")
    assert main(["leaderboard"]) == 2
    assert "leaderboard' is a link" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in (tmp_path / "home").iterdir()] == [("README.md", "mine")]


def test_of_thousands_of_bad_files_some_are_listed_and_all_are_counted(capsys):
    assert say_left_out([RecordError(f"file {i}") for i in range(3_000)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 22
    assert lines[-2:] == ["… and 2,980 more such errors", "3,000 files were left out"]
