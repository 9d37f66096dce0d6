"""What a lesson finds when the manual runs it."""

import os
from pathlib import Path

import pytest

pytest.importorskip("sphinx_gallery", reason="extra docs")

from generate import lessons

FOLDERS = ("OPENBENCH_CACHE", "OPENBENCH_RESULTS")


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setattr(lessons, "PLACES", tmp_path)
    for name in FOLDERS:
        monkeypatch.setenv(name, "")


def test_a_lesson_finds_nothing_of_another_or_of_an_earlier_build():
    seen = []
    for file in ("examples/a.py", "examples/b.py", "examples/a.py"):
        lessons.apart({}, file)
        seen.append([os.environ[name] for name in FOLDERS])
        for folder in map(Path, seen[-1]):
            assert not folder.exists()
            folder.mkdir(parents=True)
    assert seen[0] == seen[2]
    assert len({*seen[0], *seen[1]}) == 4


def test_every_lesson_has_its_place_in_the_order():
    examples = Path(__file__).parents[2] / "examples"
    assert set(lessons.LESSONS) == {file.name for file in examples.glob("*.py")}
