"""A checkout with uncommitted changes: what it makes is told from what the commit made, file by file."""

import os
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest

import openbench
from openbench import source
from openbench.backbones.base import Backbone
from openbench.compose.config import compose, scientific
from openbench.config.build import build
from openbench.data.build import build_benchmark
from openbench.engine.provenance import TrainingInfo
from openbench.engine.run import RunSpec
from openbench.errors import ConfigError
from openbench.features.store import FeatureStore
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP
from openbench.training.base import TrainingJob
from openbench.training.loop.weights import build_training

ROOT = Path(openbench.__file__).parent.parent


@pytest.fixture(scope="module")
def digits():
    """A benchmark, a training and a network, of which names are made."""
    config = scientific(compose("run", ["+benchmark=digits", "backbone=resnet8_digits"]), {"method": "msp"})
    benchmark, training = build_benchmark(config["benchmark"]), build_training(config["training"])
    network = build(config["backbone"], "backbone", Backbone, num_classes=6, preprocess=benchmark.preprocess)
    job = TrainingJob.of(deepcopy(network), benchmark, training, 0)
    network.load_state(network.module().state_dict(), "random")
    return SimpleNamespace(config=config, benchmark=benchmark, training=training, network=network, job=job)


def names(digits) -> dict[str, str]:
    """What names weights, cached columns and the results of two methods."""
    learnt = TrainingInfo("cross_entropy", method=digits.training)
    found = {
        name: RunSpec(digits.benchmark, digits.network, method, name, config=digits.config, training_info=learnt).run_id
        for name, method in (("KNN", KNN()), ("MSP", MSP()))
    }
    columns = str(FeatureStore(Path("x"))._folder(digits.network, digits.benchmark.id_test))
    return found | {"weights": digits.job.digest, "columns": columns}


@pytest.mark.parametrize(
    ("file", "touched"),
    [
        ("cli/commands/jobs.py", set()),
        ("methods/knn.py", {"KNN"}),
        ("methods/_bank.py", {"KNN"}),
        ("training/loop/_loop.py", {"weights"}),
        ("training/methods/cross_entropy.py", {"weights", "KNN", "MSP"}),
        ("backbones/cifar.py", {"weights", "columns", "KNN", "MSP"}),
        ("engine/evaluate.py", {"KNN", "MSP"}),
    ],
)
def test_an_edit_changes_the_names_of_what_the_file_has_a_part_in_and_no_others(digits, monkeypatch, file, touched):
    monkeypatch.setattr(source, "_changed", dict)
    committed = names(digits)
    monkeypatch.setattr(source, "_changed", lambda: {f"openbench/{file}": ROOT / "openbench" / file})
    found = names(digits)
    assert {what for what in found if found[what] != committed[what]} == touched


def git(folder: Path, *args: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)


PROGRAM = """
import openbench
from openbench import source
print(openbench.__file__, source.dirty())
for name in sorted(source.uncommitted("openbench.results.records.store")):
    print(name)
"""


def test_what_git_calls_changed_or_unknown_is_found_if_it_is_imported(tmp_path):
    shutil.copytree(ROOT / "openbench", tmp_path / "openbench", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")

    def seen() -> list[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, cwd=tmp_path)
        return done.stdout.splitlines()

    package = tmp_path / "openbench"
    assert seen() == [f"{package}/__init__.py False"]
    for file in ("storage/files.py", "results/records/store.py", "cli/commands/jobs.py"):
        (package / file).write_text((package / file).read_text() + "# edited\n")
    git(tmp_path, "add", "openbench/results")  # what is staged is not committed either
    (package / "core/new_here.py").write_text("")
    (package / "core/names.py").write_text("import openbench.core.new_here\n" + (package / "core/names.py").read_text())
    found = ["core/names.py", "core/new_here.py", "results/records/store.py", "storage/files.py"]
    assert seen() == [f"{package}/__init__.py True", *(f"openbench/{file}" for file in found)]


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """The folder that the package seems to be in, of which nothing is known yet."""
    known = source._changed, source.commit, source.dirty
    for answer in known:
        answer.cache_clear()
    monkeypatch.setattr(source, "_root", lambda: tmp_path)
    yield tmp_path
    for answer in known:
        answer.cache_clear()


def test_an_installed_package_has_no_checkout(elsewhere):
    assert (source.commit(), source.dirty(), source.uncommitted("openbench.engine.run")) == (None, None, {})


def test_a_checkout_that_git_does_not_read_reuses_nothing(elsewhere):
    (elsewhere / ".git").mkdir()
    with pytest.raises(ConfigError, match=r"git cannot say what .*fatal: not a git repository.* safe\.directory"):
        source.uncommitted("openbench.engine.run")
    assert (source.commit(), source.dirty()) == (None, None)
