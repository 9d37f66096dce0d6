"""Which source files something comes from that openbench does not ship, and what git says of a checkout."""

import copy
import hashlib
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
import textwrap
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import openbench
from openbench import source
from openbench.backbones.base import Backbone
from openbench.compose.config import compose, scientific
from openbench.config.build import build
from openbench.core.method import LiveMethod
from openbench.data.build import build_benchmark
from openbench.engine.provenance import TrainingInfo
from openbench.engine.run import RunSpec
from openbench.errors import ConfigError
from openbench.features.store import FeatureStore
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP
from openbench.source import changed_since_loaded, foreign_code, foreign_sources, loaded_sha256, unknown_sources
from openbench.training.base import TrainingJob
from openbench.training.loop.weights import build_training

METHOD = """
from dataclasses import dataclass
from typing import ClassVar

from openbench.core.method import LiveMethod
from openbench.methods.msp import MSP


@dataclass
class Mine(MSP):
    reference: ClassVar[str] = "-"


class Base:
    pass


@dataclass
class Live(LiveMethod, Base):
    reference: ClassVar[str] = "-"

    def score_images(self, images, backbone):
        return images.mean(dim=(1, 2, 3))


def made(power: int = 1) -> MSP:
    return MSP()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes modules that Python then finds; given {path: source}, returns the first one imported."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(files: dict[str, str]):
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(files)).removesuffix(".py").replace("/", "."))

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def sha256(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_a_method_of_ours_has_no_foreign_source():
    assert foreign_sources(KNN()) == {}
    assert foreign_sources(DoubleScore(MSP(), KNN())) == {}


def test_a_users_class_is_named_by_the_bytes_of_its_file(project):
    mine = project({"mine_of_test.py": METHOD})
    expected = {"mine_of_test": sha256(mine.__file__)}
    assert foreign_sources(mine.Mine()) == expected
    assert foreign_sources(DoubleScore(MSP(), mine.Mine())) == expected
    assert foreign_sources([{"part": mine.Mine()}], mine.Mine) == expected
    assert foreign_code(mine.Live()) == [mine.Live, mine.Base]


def test_what_a_users_function_makes_is_named_by_its_file(project):
    """The object is of a class of ours, and yet made by other code."""
    mine = project({"mine_of_test.py": METHOD})
    node = {"_target_": "mine_of_test.made"}
    whole = {"_target_": "DoubleScore", "risk": node, "ood": {"_target_": "Energy"}}
    for made in (build(node, kind=MSP), copy.deepcopy(build(node, kind=MSP)), build(whole, kind=DoubleScore)):
        assert foreign_sources(made) == {"mine_of_test": sha256(mine.__file__)}


@pytest.mark.parametrize(
    ("importing", "helper"),
    [
        ("from helper_of_test import sign", "helper_of_test.py"),
        ("def later():\n    from helper_of_test import sign", "helper_of_test.py"),
        ("import importlib\nhelper = importlib.import_module('helper_of_test')", "helper_of_test.py"),
        ("from helpers_of_test import signs", "helpers_of_test/signs.py"),
    ],
)
def test_an_edit_in_a_module_beside_it_is_noticed(project, tmp_path, importing, helper):
    name = helper.removesuffix(".py").replace("/", ".")
    (tmp_path / helper).parent.mkdir(exist_ok=True)
    (tmp_path / helper).write_text("sign = 1\n")
    text = f"{importing}\n{METHOD}"
    before = foreign_sources(project({"mine_of_test.py": text}).Mine())
    (tmp_path / helper).write_text("sign = -1  # edited\n")
    for module in ("mine_of_test", *[loaded for loaded in sys.modules if loaded.startswith(name.split(".")[0])]):
        sys.modules.pop(module, None)  # as in another process
    after = foreign_sources(project({"mine_of_test.py": text}).Mine())
    assert before.keys() == after.keys()
    assert [module for module in before if before[module] != after[module]] == [name]


# pytest would load modules named *_test in its own way.
EDITED = """
from openbench.methods.msp import MSP
import own_helper

GAIN = 2.0

class Mine(MSP):
    reference = "-"
    sign = 1

    def score(self, x):
        return self.sign * GAIN * own_helper.turned(super().score(x))
"""
HELPER = "def turned(scores):\n    return scores\n"


@pytest.mark.parametrize(("file", "old", "new"), [
    ("own_method.py", "self.sign *", "-self.sign *"),
    ("own_helper.py", "return scores", "return -scores"),
])  # fmt: skip
def test_code_that_was_loaded_counts_though_its_file_was_edited_since(project, tmp_path, file, old, new):
    mine = project({"own_method.py": EDITED, "own_helper.py": HELPER})
    before = foreign_sources(mine.Mine())
    assert changed_since_loaded(before) == []
    (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new))
    assert foreign_sources(mine.Mine()) == before
    assert changed_since_loaded(before) == [file.removesuffix(".py")]


def test_a_file_that_was_edited_before_the_first_look_is_not_taken_for_the_code_that_was_loaded(project, tmp_path):
    mine = project({"own_method.py": EDITED, "own_helper.py": HELPER})
    (tmp_path / "own_method.py").write_text(EDITED.replace("self.sign *", "-self.sign *"))
    found = foreign_sources(mine.Mine())
    assert found["own_method"].startswith("loaded ")
    assert foreign_sources(mine.Mine()) == found
    assert changed_since_loaded(found) == ["own_method"]
    importlib.reload(mine)
    assert foreign_sources(mine.Mine())["own_method"] == sha256(mine.__file__)
    (tmp_path / "own_method.py").unlink()
    assert unknown_sources(foreign_sources(mine.Mine())) == ["own_method.Mine"]


def test_what_was_replaced_in_memory_is_other_code(project, monkeypatch):
    mine = project({"own_method.py": EDITED, "own_helper.py": HELPER})
    before = foreign_sources(mine.Mine())
    for part, name in ((mine.Mine, "score"), (mine.own_helper, "turned")):
        with monkeypatch.context() as patch:
            patch.setattr(part, name, lambda *arguments: -arguments[-1])
            assert foreign_sources(mine.Mine()) != before
    assert foreign_sources(mine.Mine()) == before


def test_a_class_of_ours_whose_score_was_replaced_is_not_as_shipped(monkeypatch):
    score = MSP.score
    monkeypatch.setattr(MSP, "score", lambda self, x: -score(self, x))
    found = foreign_sources(MSP())
    assert list(found) == ["openbench.methods.msp"]
    assert found["openbench.methods.msp"].startswith("loaded ")
    monkeypatch.undo()
    assert foreign_sources(MSP()) == {}


def test_every_module_of_ours_is_loaded_as_its_file_says(monkeypatch):
    monkeypatch.setattr("openbench.training.loop._loop.as_png", None)  # which conftest has replaced
    for module in pkgutil.walk_packages(openbench.__path__, "openbench."):
        if not module.name.endswith("__main__"):
            file = Path(importlib.import_module(module.name).__file__)
            assert loaded_sha256(module.name, file) == sha256(file), module.name


def test_what_only_type_checkers_import_is_not_part_of_a_source(project, tmp_path):
    (tmp_path / "kinds_of_test.py").write_text("class Kind: ...\n")
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kinds_of_test import Kind\n"
    mine = project({"mine_of_test.py": f"{guarded}{METHOD}"})
    assert list(foreign_sources(mine.Mine())) == ["mine_of_test"]


def test_a_package_is_followed_through_its_own_imports_and_no_further(project, tmp_path):
    files = {
        "pack_of_test/methods/mine.py": f"from ..base import Root\nfrom . import beside\nimport json, torch\n{METHOD}",
        "pack_of_test/__init__.py": "",
        "pack_of_test/methods/__init__.py": "from pack_of_test.registry import known",
        "pack_of_test/methods/beside.py": "from pack_of_test.deep import *",
        "pack_of_test/base.py": "class Root:\n    pass",
        "pack_of_test/deep.py": "",
        "pack_of_test/registry.py": "known = []",
        "pack_of_test/unused.py": "",
        "unused_of_test.py": "",
    }
    mine = project(files)
    found = foreign_sources(mine.Mine())
    used = [path for path in files if "unused" not in path]
    assert found == {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): sha256(tmp_path / path) for path in used
    }


def test_what_is_installed_beside_an_installed_module_is_another_project(project, tmp_path, monkeypatch):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    monkeypatch.syspath_prepend(installed)
    for name, text in (("plugin_of_test.py", f"import other_of_test\n{METHOD}"), ("other_of_test.py", "")):
        (installed / name).write_text(text)
    mine = importlib.import_module("plugin_of_test")
    try:
        assert foreign_sources(mine.Mine()) == {"plugin_of_test": sha256(mine.__file__)}
    finally:
        del sys.modules["plugin_of_test"], sys.modules["other_of_test"]


def typed(name: str) -> type:
    """A class as a session has it: of a module without a file."""
    return dataclass(type(name, (LiveMethod,), {"__module__": "session_of_test", "score_images": None}))


def test_a_class_without_a_file_equals_nothing_that_was_made_before():
    mine = typed("Mine")()
    found = foreign_sources(mine)
    assert unknown_sources(found) == ["session_of_test.Mine"]
    assert foreign_sources(mine) == found, "the same object must find what it has just written"
    assert foreign_sources(typed("Mine")()) != found
    assert mine.identity() == mine.identity() != typed("Mine")().identity()


def test_cached_scores_of_a_users_live_method_are_named_by_its_source(project):
    """An edit under the same version would else go on with the scores of the code before."""
    mine = project({"mine_of_test.py": METHOD})
    before = mine.Live().identity()
    Path(mine.__file__).write_text(METHOD + "\n# edited\n")
    assert mine.Live().identity() != before


ROOT = Path(openbench.__file__).parent.parent


@pytest.fixture(scope="module")
def digits():
    """A benchmark, a training and a network, of which names are made."""
    config = scientific(compose("run", ["+benchmark=openset_digits"]), {"method": "msp"})
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
    return found | {"weights": replace(digits.job).digest, "columns": columns}


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
