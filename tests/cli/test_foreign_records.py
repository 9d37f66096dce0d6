"""A record may come from anybody: neither showing nor verifying it runs what it names, and its commands are quoted."""

import shlex
import sys
from dataclasses import replace

import pytest

from openbench.__main__ import main
from openbench.cli.commands.verify import again, command
from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.records.store import RecordStore

from .test_again import record_of


def record_with(*words: str, **of_method) -> ResultRecord:
    """A record of knn on digits with these overrides besides, or other values in its method node."""
    record = record_of("+benchmark=digits", "method=knn", "tune=none")
    config = {**record.config, "method": {**record.config["method"], **of_method}}
    return replace(record, config=config, config_digest="", overrides=[*record.overrides, *words])


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A package on Python's path that must not be imported."""
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    assert "trap" not in sys.modules


@pytest.mark.parametrize(
    "word",
    [
        "method._target_=trap.Trap",
        "+method.of={k:[{_target_:trap.Trap}]}",
        "+method._target_=${benchmark.name}.Trap",
        "hydra.searchpath=[pkg://trap]",
        "+hydra/launcher=trap",
    ],
)
def test_overrides_that_name_code_are_refused_and_nothing_is_imported(trap, word):
    record = record_with(word)
    assert command(record) == ""
    with pytest.raises(RecordError, match=r"names code that is not openbench's and was not imported: "):
        again(record)


def test_a_class_that_only_the_config_names_is_not_imported(trap):
    record = record_with(_target_="trap.Trap", _scorer_of_training_=True)
    record.config["training"] = {**record.config["training"], "_target_": "trap.Trap"}
    with pytest.raises(RecordError, match="no command gives its config any more"):
        again(record)


def test_verify_refuses_a_foreign_class_and_show_gives_no_command_for_it(trap, tmp_path, capsys):
    RecordStore(tmp_path).write(record := record_with("method._target_=trap.Trap"))
    assert main(["verify", record.run_id, "--results", str(tmp_path)]) == 2
    assert "not openbench's and was not imported: method._target_=trap.Trap" in capsys.readouterr().err
    assert main(["show", "record", record.run_id, "--results", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("command:")]
    assert line.startswith("command: none is given: ")


def test_verify_says_which_foreign_code_it_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine/method").mkdir(parents=True)
    (tmp_path / "mine/method/near.yaml").write_text("_target_: own_near.Near\n")
    (tmp_path / "own_near.py").write_text("raise ImportError('reached')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    record = record_of("+benchmark=digits", "method=near", folder=tmp_path / "mine")
    RecordStore(tmp_path / "results").write(record)
    typed = ["verify", record.run_id, "--results", str(tmp_path / "results"), "--config-dir", str(tmp_path / "mine")]
    assert main(typed) == 2
    err = capsys.readouterr().err
    assert "runs code that is not openbench's: own_near.Near" in err
    assert err.index("runs code") < err.index("reached")


@pytest.mark.parametrize("value", ["1; touch X; echo", "$(touch X)", "a' b", "x|y"])
def test_a_printed_command_is_one_command_whatever_the_values(value):
    word = f"method.metric={value}"
    typed = command(record_with(word))
    words = shlex.split(typed)
    assert words[:4] == ["python", "-m", "openbench", "run"]
    reparsed = shlex.shlex(typed, posix=True, punctuation_chars=True)
    reparsed.whitespace_split = True
    assert list(reparsed) == words
    assert words[-1] == word


def test_a_value_that_cannot_be_seen_gives_no_command(tmp_path, capsys):
    RecordStore(tmp_path).write(record := record_of("+benchmark=digits", "method=knn", "+method.metric='a\x1b[2J'"))
    assert main(["show", "record", record.run_id, "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "command: none can be typed: its config holds characters that cannot be printed" in out


def test_an_environment_variable_that_a_record_names_is_not_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    RecordStore(tmp_path).write(record := record_with("method.metric=${oc.env:SECRET_TOKEN}"))
    assert main(["show", "record", record.run_id, "--results", str(tmp_path)]) == 0
    assert "hunter2" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(("threads", "set_to"), [(3, [3]), ("1; touch X", []), (10**9, [])])
def test_only_a_sane_number_of_threads_is_taken_from_a_record(monkeypatch, threads, set_to):
    import torch

    from openbench.cli.commands.verify import _use_threads

    taken = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    record = record_with()
    _use_threads(replace(record, provenance={**record.provenance, "threads": threads}))
    assert taken == set_to
