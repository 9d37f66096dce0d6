"""Command lines, names, manifests, lists and config files of any kind: exit code 0 or 2, one message, no traceback.

Some cases by default; fifty times as many with OPENBENCH_HYPOTHESIS=deep.
"""

import contextlib
import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, event, given, settings, strategies as st
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main

from .conftest import RUN, Place
from .strategies import NAMES, damaged, lists, overrides

MOST = settings.default.max_examples
CALLS = settings(max_examples=MOST // 10, suppress_health_check=list(HealthCheck))  # each composes a config


@pytest.fixture
def here(place: Place, undisturbed: dict[str, bytes]) -> Place:
    """All that a run left but its scores and record."""
    place.reset(
        {name: file for name, file in undisturbed.items() if not name.startswith(("results/", "cache/scores/"))}
    )
    return place


def call(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a command; it is checked that bad input is one message."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = main(command)
    event(f"{command[0]} exit {code}")
    said = err.getvalue()
    assert code in (0, 2), (command, said)
    assert "Traceback" not in said, (command, said)
    if code == 2:
        assert said.count("error: ") == 1, (command, said)
    assert all(line.isprintable() for line in said.splitlines()), (command, said)
    return code, out.getvalue()


def read_lines(path: Path) -> io.StringIO:
    """A text file as the module csv wants it."""
    return io.StringIO(path.read_text(encoding="utf-8"), newline="")


def by_others(scores: Path) -> tuple[int, int, float]:
    """Numbers of ID and near scores, and their AUROC, by pandas and scikit-learn."""
    table = pd.read_parquet(scores)
    table = table[table["role"].isin(["id_test", "near"])]
    ood = table["role"] == "near"
    return int((~ood).sum()), int(ood.sum()), float(roc_auc_score(ood, table["score"]))


def check_record(place: Place) -> None:
    """The one record says what its kept scores do; both are then deleted."""
    files = list((place.folder / "results").rglob("*.json"))
    for path in files:
        metrics = json.loads(path.read_text())["metrics"]
        n_id, n_ood, auroc = by_others(place.folder / "cache" / "scores" / f"{path.stem}.parquet")
        found = metrics["near/birds"] if "near/birds" in metrics else metrics["near"]
        assert (metrics["id"]["n_id"], found.get("n_ood", n_ood)) == (n_id, n_ood)
        assert found["auroc"] == pytest.approx(auroc, abs=1e-12)
    shutil.rmtree(place.folder / "results", ignore_errors=True)


TRAINED = (*RUN, "runtime.train=never", "runtime.device=cpu", "--config-dir", "pets")


@CALLS
@given(words=st.lists(overrides(), min_size=1, max_size=3))
def test_any_words_on_the_command_line_are_taken_or_refused(here: Place, words: list[str]):
    assume(not any(word.startswith("-") for word in words))
    code, _ = call([*TRAINED, *words])
    if code == 0:
        check_record(here)


@CALLS
@given(name=NAMES, near=NAMES)
def test_a_benchmark_of_any_name_is_written_and_read_again_or_refused(here: Place, name: str, near: str):
    folder = here.folder / "named"
    try:
        code, _ = call(["data", "new", name, "--id", "photos", "--near", f"{near}=birds", "--to", str(folder)])
        if code:
            assert not folder.exists()
            return
        (path,) = (folder / "benchmark").glob("*.yaml")
        assert path.stem == name
        code, _ = call(["check", "--config-dir", str(folder), f"+benchmark={name}"])
        assert code == 0
        counts = [len(list(csv.DictReader(read_lines(file)))) for file in folder.rglob("*.csv")]
        assert sorted(counts) == [4, 12, 12, 24]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@CALLS
@given(data=st.data(), found=lists(), harm=st.booleans())
def test_any_list_of_images_is_read_as_another_reader_reads_it_or_refused(here: Place, data, found, harm: bool):
    text, rows = found
    content = data.draw(damaged(text.encode())) if harm else text.encode()
    path = next((here.folder / "pets").rglob("near.birds.csv"))
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        code, _ = call([*TRAINED])
        if code == 0:
            table = re.sub(r"\A(#[^\n]*\n)*", "", content.decode("utf-8-sig"))  # after its notes
            again = list(csv.DictReader(io.StringIO(table, newline="")))
            files = (here.folder / "cache" / "scores").glob("*.parquet")
            kept = pd.read_parquet(next(file for file in files if "by_class" not in file.name))
            assert (kept["role"] == "near").sum() == len(again)
            check_record(here)
        else:
            assert harm or {label for _, label in rows} & {"cat", "dog"}
    finally:
        path.write_bytes(before)
        shutil.rmtree(here.folder / "cache" / "scores", ignore_errors=True)


@CALLS
@given(data=st.data())
def test_any_config_file_of_a_benchmark_is_taken_or_refused(here: Place, data):
    path = here.folder / "pets" / "benchmark" / "pets.yaml"
    before = path.read_bytes()
    path.write_bytes(data.draw(damaged(before)))
    try:
        code, _ = call([*TRAINED])
        if code == 0:
            check_record(here)
    finally:
        path.write_bytes(before)
