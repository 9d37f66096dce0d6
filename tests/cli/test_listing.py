import csv
import io
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from openbench import paths
from openbench.cli import registry
from openbench.cli.app import carry_out
from openbench.cli.commands.listing import overview, usage
from openbench.cli.registry import entry, year_of
from openbench.config.folders import shipped
from openbench.core.method import HeadMethod
from openbench.core.record import ResultRecord
from openbench.core.request import Field, Request, Role
from openbench.data.manifests import load_classes
from openbench.errors import ConfigError, RecordError
from openbench.results.records.store import RecordStore
from openbench.results.tables.frames import frame_of
from tests.results.records import make_record

from .conftest import write

ROOT = Path(__file__).parents[2]


def main(words: list[str]) -> int:
    return carry_out(["list", *words])


def show(words: list[str]) -> int:
    return carry_out(["show", *words])


def listed(capsys, *argv) -> list[dict[str, str]]:
    assert main([*argv, "--format", "csv"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def shown(capsys, *argv) -> str:
    assert show(list(argv)) == 0
    return capsys.readouterr().out


@dataclass
class Base(HeadMethod):
    """Base."""

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES}), fit_on=Role.ID_VAL, layers=("stage4",), pool="gram"
    )
    reference: ClassVar[str] = "A, B, arXiv 2405.01234"
    beta: int = 3

    def reshape(self, features):
        return features


@dataclass
class Ours(Base):
    """Formula f(x) = x.

    More.
    """

    alpha: float = 1.0


@pytest.fixture
def toys(configs, tmp_path, monkeypatch):
    """A method of a user beside the toy configs, in a module on Python's path."""
    folder = tmp_path / "mine"
    (folder / "method").mkdir(parents=True)
    (folder / "method" / "ours.yaml").write_text(
        "# A user's method.\n_target_: listed_toys.Ours\nalpha: 0.5\n_space_: {alpha: [0.5, 1]}\n"
    )
    monkeypatch.setitem(sys.modules, "listed_toys", sys.modules[__name__])
    return folder


def test_every_group_is_listed_with_the_number_of_its_files(capsys):
    rows = {row["group"]: int(row["entries"]) for row in listed(capsys)}
    folders = [folder for folder in paths.config_dir().iterdir() if folder.is_dir()]
    assert rows == {f.name: len(list(f.rglob("*.yaml"))) for f in folders if list(f.rglob("*.yaml"))}
    assert frame_of(overview())["entries"].tolist() == list(rows.values())


def test_every_file_of_a_group_is_listed_with_a_line_about_it(capsys):
    silent = []
    for folder in (found for found in paths.config_dir().iterdir() if found.is_dir()):
        rows = listed(capsys, folder.name)
        names = sorted(p.relative_to(folder).as_posix().removesuffix(".yaml") for p in folder.rglob("*.yaml"))
        assert [row["name"] for row in rows] == names
        line = "score" if folder.name == "method" else "what it is"
        silent += [row["name"] for row in rows if not row[line] or row[line].startswith(("@", "python -m"))]
    assert silent == []


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("msp", "logits"),
        ("vim", "features, logits; head; fit on id_train"),
        ("odin", "logits; input gradient"),
        ("gram", "labels, logits, maps; stage1, stage2, stage3, stage4 (gram10); fit on id_train"),
    ],
)
def test_a_method_is_listed_with_what_it_reads(name, needs):
    assert entry("method", name).needs() == needs
    assert entry("method", "rankfeat").needs().startswith("images")


def test_a_method_that_cannot_be_made_alone_is_listed_with_what_its_class_reads(toys):
    (toys / "method" / "ours.yaml").write_text("_target_: listed_toys.Ours\nalpha: ${seed}\n")
    assert entry("method", "ours", toys).needs() == "features; stage4 (gram); fit on id_val"


def test_a_method_is_shown_with_what_its_hyper_parameters_take(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    lines = [line.split("  ") for line in shown(capsys, "method", "knn").splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert ["hyper-parameter", "default", "allowed", "searched on validation"] in cells
    assert ["k", "50", "a whole number ≥ 1", "50, 100, 200, 500, 1000"] in cells
    assert ["index", "exact", "exact, faiss_flat, ivf, hnsw"] in cells


def test_a_users_methods_stand_beside_ours(toys, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    (row,) = [r for r in listed(capsys, "backbone", "--config-dir", str(toys)) if r["name"] == "tiny"]
    text = shown(capsys, "method", "ours", "--config-dir", str(toys))
    assert row["name"] == "tiny"
    assert "Formula f(x) = x." in text
    assert "Needs: features; stage4 (gram); fit on id_val" in text
    assert [line.split() for line in text.splitlines() if line.strip().startswith(("alpha", "beta"))] == [
        ["beta", "3", "a", "whole", "number", "(of", "64", "bits", "at", "most)"],
        ["alpha", "0.5", "a", "finite", "number", "0.5,", "1"],
    ]
    assert "2 settings in all" in text
    assert text.endswith(f"Run: python -m openbench run +benchmark=digits method=ours --config-dir {toys}\n")
    # What we ship is found without it.
    assert shown(capsys, "tune", "none", "--config-dir", str(toys)).endswith("tune=none\n")
    write(toys / "tune/twice.yaml", "k: 1\nk: 2")
    assert "cannot be completed here: the config does not" in shown(capsys, "tune", "twice", "--config-dir", str(toys))


def test_an_unknown_group_or_name_offers_the_nearest(toys):
    with pytest.raises(ConfigError, match="group 'methods' not found in configs; did you mean 'method'"):
        main(["methods"])
    with pytest.raises(ConfigError, match="backbone 'tinny' not found in configs/backbone; did you mean 'tiny'"):
        show(["backbone", "tinny"])


@pytest.mark.parametrize(
    ("text", "said"),
    [("_target_: listed_toys.Base0\n", "has no 'Base0'; did you mean 'Base'"), ("k: 1\n", "no `_target_`")],
)
def test_a_method_file_that_names_no_class_is_an_error_that_names_it(toys, text, said):
    (toys / "method" / "ours.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        show(["method", "ours", "--config-dir", str(toys)])


def test_a_benchmark_is_shown_with_its_comments_and_what_its_defaults_bring_in(capsys):
    text = shown(capsys, "benchmark", "digits")
    file = (paths.config_dir() / "benchmark" / "digits.yaml").read_text()
    assert file in text
    resolved = yaml.safe_load(text.split("# ----- with all that its defaults bring in -----\n")[1])
    assert resolved["near"]["eight"]["manifest"] == "digits/eight"
    assert resolved["near"]["eight"]["sources"]["installed"]["_target_"].startswith("openbench.")


def test_an_entry_of_every_group_can_be_shown(capsys):
    for group in registry.groups():
        name = registry.entries(group)[-1].name
        text = shown(capsys, group, name)
        assert ("cannot be completed" in text, name in text) == (False, True), group


def test_the_command_shown_for_a_backbone_is_one_of_a_benchmark_it_fits():
    """It has the classes of its weights, and vectors where it takes vectors."""
    wrong = []
    for one in registry.entries("backbone"):
        words = shlex.split(usage(one, None))[4:]
        assert f"backbone={one.name}" in words
        assert words[0].startswith("+benchmark=")
        chosen = dict(word.lstrip("+").split("=") for word in words if "." not in word.partition("=")[0])
        nodes = {group: shipped(group.partition("@")[0], name) for group, name in chosen.items()}
        names = (nodes["benchmark"] or {})["benchmark"].get("classes", "tiny_imagenet/classes")  # the first of a group
        classes = len(load_classes(names) if isinstance(names, str) else names)
        weights, target = one.config(), nodes["backbone"]["_target_"]
        published = weights.get("num_classes") or (1000 if weights.get("weights") else None)
        if None in nodes.values() or (classes == 1) != target.endswith("Identity") or published not in (None, classes):
            wrong.append((one.name, words, classes))
    assert wrong == []


@pytest.fixture
def record(tmp_path) -> ResultRecord:
    record = make_record(
        run_id="0123456789abcdef",
        trials=[{"params": {"k": 5}, "auroc": 0.8125}],
        metrics={"near": {"auroc": 0.875, "autc": 0.25}, "id": {"accuracy": 0.5}},
        header="conventions",
    )
    RecordStore(tmp_path).write(record)
    return record


@pytest.mark.parametrize("name", ["0123456789abcdef", "0123", "latest"])
def test_a_record_is_shown_by_its_run_id_or_its_beginning_or_as_the_latest(record, tmp_path, capsys, name):
    where = ("record", name, "--results", str(tmp_path))
    text = shown(capsys, *where)
    assert all(part in text for part in ("87.50", "conventions", f"record: {record.run_id}\n"))
    assert "conventions:" not in text
    assert f"conventions:\n  {record.header}" in shown(capsys, *where, "--explain")
    assert "25.00" in shown(capsys, *where, "--view", "threshold")
    everything = shown(capsys, *where, "--view", "all")
    assert all(number in everything for number in ("87.50", "25.00", "81.25"))


def test_a_record_that_is_not_there_offers_the_nearest(record, tmp_path):
    with pytest.raises(RecordError, match=r"record '0123456789abcdee' not found in .* did you mean '0123456789abcdef'"):
        show(["record", "0123456789abcdee", "--results", str(tmp_path)])


@pytest.mark.parametrize(
    ("reference", "year"),
    [("A, ICML 2022, arXiv 2007.05199", "2022"), ("A, arXiv 2007.05199", "2020"), ("A, arXiv 2306.09301", "2023")],
)
def test_the_year_of_a_paper_is_not_the_beginning_of_an_arxiv_id(reference, year):
    assert year_of(reference) == year
