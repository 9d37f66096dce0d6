"""The command that makes a record again: it composes to its config or is not given, and runs nothing foreign."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from openbench.__main__ import main
from openbench.cli.app import carry_out
from openbench.cli.commands.verify import again, command
from openbench.compose.config import composed
from openbench.config.overrides import words_of
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import RecordError
from openbench.paths import config_dir
from openbench.public import public
from openbench.results.records.store import RecordStore
from tests.results.records import make_record


def record_with(*words: str, **of_method) -> ResultRecord:
    """A record of knn on digits with these overrides besides, or other values in its method node."""
    record = record_of(*typed(method="knn", tune="none"))
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
    record = record_of(*typed(method="near"), folder=tmp_path / "mine")
    RecordStore(tmp_path / "results").write(record)
    words = ["verify", record.run_id, "--results", str(tmp_path / "results"), "--config-dir", str(tmp_path / "mine")]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "runs code that is not openbench's: own_near.Near" in err
    assert err.index("runs code") < err.index("reached")


@pytest.mark.parametrize("value", ["1; touch X; echo", "$(touch X)", "a' b", "x|y"])
def test_a_printed_command_is_one_command_whatever_the_values(value):
    word = f"method.metric={value}"
    line = command(record_with(word))
    words = shlex.split(line)
    assert words[:4] == ["python", "-m", "openbench", "run"]
    reparsed = shlex.shlex(line, posix=True, punctuation_chars=True)
    reparsed.whitespace_split = True
    assert list(reparsed) == words
    assert words[-1] == word


def test_a_value_that_cannot_be_seen_gives_no_command(tmp_path, capsys):
    RecordStore(tmp_path).write(record := record_of(*typed(method="knn"), "+method.metric='a\x1b[2J'"))
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


def typed(**chosen: str) -> list[str]:
    """Words that choose every file in the order in which a record has them, so that they are composed only once."""
    files = {"backbone": "resnet8_digits", "training": "cross_entropy", "method": "msp", "tune": "validation"}
    return [f"+benchmark={chosen.pop('benchmark', 'digits')}", *(f"{k}={v}" for k, v in {**files, **chosen}.items())]


def record_of(*words: str, folder: Path | None = None) -> ResultRecord:
    """A record as a run with this command line writes it, as far as the command can be told from it."""
    made = composed("run", list(words), folder)
    config = public(made.config)
    return make_record(
        run_id="0123456789abcdef",
        config=config,
        benchmark={"name": config["benchmark"]["name"], "digest": "a", "pristine": True, "deviations": []},
        provenance={"openbench": "0.1.0", "git_sha": "abcdef0123456789", "git_dirty": True, "utc": "2026-01-02"},
        overrides=made.overrides,
        config_digest=digest(config),
    )


@pytest.mark.parametrize(
    ("words", "spelt"),
    [
        (
            # A set that is left out, a rate by set, text that needs quotes, keys that are new, and outliers.
            [
                *("+benchmark=digits", "runtime.workers=2", "~benchmark.far.noise", "benchmark.incomplete=allow"),
                *("metrics.fpr={eight: 0.1, nine: 2.5e-3}", "metrics.alphas=[0.1,0.2]", "+training.recipe.ema=0.99"),
                *("backbone.name='my net, 2'", "training=udg", "dataset@outliers=noise", "outliers.limit=50"),
                "+augment=pixmix",
            ],
            "backbone=resnet8_digits training=udg method=msp tune=validation +augment=pixmix '~benchmark.far.noise' "
            "benchmark.incomplete=allow 'metrics.fpr={eight:0.1,nine:0.0025}'",
        ),
        (["+benchmark=digits", "+scorer=published", "training=cider"], "tune=validation +scorer=published"),
        (["+benchmark=adbench", "benchmark.table=wine", "method=mds"], "tune=none benchmark.table=wine"),
    ],
)
def test_the_overrides_of_a_record_are_in_one_spelling_and_compose_to_its_config(words, spelt):
    record = record_of(*words)
    line = command(record)
    assert f" {spelt}" in line
    program, *rest = shlex.split(line)[3:]
    assert program == "run"
    assert digest(public(composed("run", rest).config)) == digest(record.config)
    assert composed("run", rest).overrides == record.overrides
    assert public(again(record)) == record.config


def test_outliers_are_left_out_where_the_training_was_shown_none():
    shown = record_of(*typed(training="udg"))
    unseen = replace(shown, config={key: node for key, node in shown.config.items() if key != "outliers"})
    assert "outliers" not in again(unseen)


def test_the_config_has_its_sets_and_its_grid_in_the_order_of_the_files():
    """A record sorts its keys; a benchmark whose sets come in another order is another one."""
    record = record_of(*typed(benchmark="cifar10", method="gen", backbone="resnet18_cifar"))
    config = again(replace(record, config=json.loads(json.dumps(record.config, sort_keys=True))))
    assert list(config["benchmark"]["far"]) == ["mnist", "svhn", "texture", "places365"]
    file = yaml.safe_load((config_dir() / "method" / "gen.yaml").read_text())
    assert list(config["method"]["_space_"]) == list(file["_space_"])


def test_no_command_is_given_where_config_files_say_something_else_now():
    record = record_of(*typed())
    for wrong in (
        replace(record, config={**record.config, "seed": 1}),
        replace(record, overrides=["+benchmark=digits", "method=gone"]),
    ):
        with pytest.raises(RecordError, match="no command gives its config any more: it was made from other config f"):
            again(wrong)


def test_a_record_without_overrides_says_so():
    old = replace(record_of(*typed()), overrides=(), config_digest="")
    assert command(old) == ""
    with pytest.raises(RecordError, match="does not say which overrides made it: an earlier version of openbench"):
        again(old)


def test_a_folder_of_ones_own_completes_the_command(tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text("_target_: mine.Mine\n")
    record = record_of(*typed(method="mine"), folder=tmp_path)
    assert command(record, tmp_path).endswith(f"method=mine tune=validation --config-dir {tmp_path}")
    assert again(record, tmp_path)["method"]["_target_"] == "mine.Mine"


def test_a_file_called_default_is_left_out_only_where_it_is_what_nothing_typed_means():
    chosen = {"method": "default", "metrics": "default", "tune": "none", "backbone": None}
    assert words_of(chosen) == ["method=default", "tune=none"]


def test_showing_a_record_ends_in_its_origin_and_the_commands(tmp_path: Path, capsys):
    record = record_of(*typed())
    RecordStore(tmp_path).write(record)
    assert carry_out(["show", "record", record.run_id, "--results", str(tmp_path)]) == 0
    made, line, verify = capsys.readouterr().out.splitlines()[-3:]
    assert made == "made by: openbench 0.1.0, commit abcdef012345 with changes, 2026-01-02"
    assert line == f"command: {command(record)}"
    assert verify == f"verify: python -m openbench verify {record.run_id} --results {tmp_path}"
    assert carry_out(["show", "record", record.run_id, "--results", str(tmp_path), "--format", "csv"]) == 0
    assert "verify:" not in capsys.readouterr().out
