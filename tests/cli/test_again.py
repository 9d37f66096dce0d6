"""The command that makes a record again: it composes to the config that the record holds, or is not given."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from openbench.cli.app import carry_out
from openbench.cli.reproduce import again, command
from openbench.compose.config import compose, scientific
from openbench.config.overrides import choices, words_of
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.paths import config_dir
from openbench.public import public
from openbench.results.records.store import RecordStore

GROUPS = ("backbone", "training", "method", "tune", "metrics")
DEFAULTS = {"training": "cross_entropy", "method": "msp", "tune": "validation", "metrics": "default"}


def record_of(words: list[str], name: str, **chosen: str) -> ResultRecord:
    """A record as a run with this command line writes it, as far as the command can be told from it."""
    config = public(scientific(compose("run", words), {**DEFAULTS, **chosen}))
    return ResultRecord(
        run_id="0123456789abcdef",
        config=config,
        benchmark={"name": name, "digest": "a", "pristine": True, "deviations": []},
        backbone={"name": "b", "digest": "b"},
        method={"name": "m", "version": 1, "reference": "", "params": {}},
        tuned={},
        trials=[],
        metrics={"near": {"auroc": 0.5}},
        header="",
        counts={},
        provenance={"openbench": "0.1.0", "git_sha": "abcdef0123456789", "git_dirty": True, "utc": "2026-01-02"},
    )


def config_of(typed: str) -> dict:
    """The config of a typed command line, with the names of the groups' files as Hydra would know them."""
    program, *words = shlex.split(typed)[3:]
    assert program == "run"
    given = dict(word.split("=", 1) for word in words if "=" in word)
    chosen = {group: given[group] for group in (*GROUPS, "dataset@outliers") if group in given}
    chosen["augment"] = given.get("+augment")
    return public(scientific(compose("run", words), {**DEFAULTS, **chosen}))


@pytest.mark.parametrize(
    ("words", "name", "chosen"),
    [
        (["+benchmark=digits"], "digits", {"backbone": "resnet8_digits"}),
        (
            ["+benchmark=digits", "method=knn", "method.k=7", "tune=none", "seed=3", "training=logitnorm"],
            "digits",
            {"backbone": "resnet8_digits", "method": "knn", "tune": "none", "training": "logitnorm"},
        ),
        # A set that is left out, a rate by set, text that Hydra would read as something else, and a key that is new.
        (
            [
                *("+benchmark=cifar10", "~benchmark.far.svhn", "benchmark.incomplete=allow", "backbone=resnet18_cifar"),
                *("metrics.fpr={tin: 0.1, mnist: 2.5e-3}", "metrics.alphas=[0.1,0.2]", "+training.recipe.ema=0.99"),
                "backbone.weights='my weights, 2.pt'",
            ],
            "cifar10",
            {"backbone": "resnet18_cifar"},
        ),
        (
            ["+benchmark=digits", "training=udg", "dataset@outliers=noise", "outliers.limit=50"],
            "digits",
            {"backbone": "resnet8_digits", "training": "udg", "dataset@outliers": "noise"},
        ),
        (["+benchmark=digits", "+augment=pixmix"], "digits", {"backbone": "resnet8_digits", "augment": "pixmix"}),
        # What the benchmark is given reaches the backbone.
        (["+benchmark=digits", "benchmark.preprocess.resize=12"], "digits", {"backbone": "resnet8_digits"}),
        (
            ["+benchmark=adbench", "benchmark.table=wine", "method=mds"],
            "adbench_wine",
            {"backbone": "identity", "method": "mds"},
        ),
    ],
)
def test_the_command_composes_to_the_config_of_the_record(words, name, chosen):
    record = record_of(words, name, **chosen)
    typed = command(record)
    assert typed is not None
    assert digest(config_of(typed)) == digest(record.config)


def test_outliers_are_typed_only_where_the_training_was_shown_some():
    shown = record_of(["+benchmark=digits", "training=udg"], "digits", training="udg")
    unseen = replace(shown, config={key: node for key, node in shown.config.items() if key != "outliers"})
    assert "outliers" not in str(command(unseen))


def test_only_what_differs_from_the_files_is_typed():
    record = record_of(
        ["+benchmark=digits", "method=knn", "method.k=7"], "digits", backbone="resnet8_digits", method="knn"
    )
    assert command(record) == (
        "python -m openbench run +benchmark=digits backbone=resnet8_digits training=cross_entropy method=knn "
        "tune=validation method.k=7"
    )


def test_the_config_has_its_sets_and_its_grid_in_the_order_of_the_files():
    """A record sorts its keys; a benchmark whose sets come in another order is another one."""
    record = record_of(["+benchmark=cifar10", "method=gen"], "cifar10", backbone="resnet18_cifar", method="gen")
    found = again(replace(record, config=json.loads(json.dumps(record.config, sort_keys=True))))
    assert found is not None
    assert list(found.config["benchmark"]["far"]) == ["mnist", "svhn", "texture", "places365"]
    file = yaml.safe_load((config_dir() / "method" / "gen.yaml").read_text())
    assert list(found.config["method"]["_space_"]) == list(file["_space_"])


def test_no_command_is_given_for_files_that_are_not_there():
    record = record_of(["+benchmark=digits"], "digits", backbone="resnet8_digits")
    gone = replace(record, config={**record.config, "method": {"_name_": "mine", "_target_": "mine.Mine"}})
    assert command(gone) is None
    assert command(replace(record, benchmark={**record.benchmark, "name": "letters"})) is None


def test_nothing_was_chosen_in_groups_that_a_config_lacks():
    found = choices({"method": {"_name_": "knn"}})
    assert {group: name for group, name in found.items() if name is not None} == {"method": "knn"}


def test_a_folder_of_ones_own_completes_the_command(tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text("_target_: mine.Mine\n")
    record = record_of(["+benchmark=digits"], "digits", backbone="resnet8_digits")
    mine = replace(record, config={**record.config, "method": {"_name_": "mine", "_target_": "mine.Mine"}})
    typed = command(mine, tmp_path)
    assert typed is not None
    assert typed.endswith(f"method=mine tune=validation --config-dir {tmp_path}")


def test_a_file_called_default_is_left_out_only_where_it_is_what_nothing_typed_means():
    chosen = {"method": "default", "metrics": "default", "tune": "none", "backbone": None}
    assert words_of(chosen) == ["method=default", "tune=none"]


def test_showing_a_record_ends_in_its_origin_and_the_commands(tmp_path: Path, capsys):
    record = record_of(["+benchmark=digits"], "digits", backbone="resnet8_digits")
    RecordStore(tmp_path).write(record)
    assert carry_out(["show", "record", record.run_id, "--results", str(tmp_path)]) == 0
    made, typed, verify = capsys.readouterr().out.splitlines()[-3:]
    assert made == "made by: openbench 0.1.0, commit abcdef012345 with changes, 2026-01-02"
    assert typed == f"command: {command(record)}"
    assert verify == f"verify: python -m openbench verify {record.run_id} --results {tmp_path}"
    assert carry_out(["show", "record", record.run_id, "--results", str(tmp_path), "--format", "csv"]) == 0
    assert "verify:" not in capsys.readouterr().out
