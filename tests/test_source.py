"""Which source files something comes from that openbench does not ship."""

import copy
import hashlib
import importlib
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from openbench.config.build import build
from openbench.core.live import LiveMethod
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP
from openbench.source import closure, foreign_code, foreign_sources, unknown_sources

METHOD = """
from dataclasses import dataclass
from typing import ClassVar

from openbench.core.live import LiveMethod
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
        for path, source in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(textwrap.dedent(source))
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
        ("import helper_of_test", "helper_of_test.py"),
        ("from helper_of_test import sign", "helper_of_test.py"),
        ("def later():\n    from helper_of_test import sign", "helper_of_test.py"),
        ("import importlib\nhelper = importlib.import_module('helper_of_test')", "helper_of_test.py"),
        ("from helpers_of_test.signs import sign", "helpers_of_test/signs.py"),
        ("from helpers_of_test import signs", "helpers_of_test/signs.py"),
    ],
)
def test_an_edit_in_a_module_beside_it_is_noticed(project, tmp_path, importing, helper):
    (tmp_path / helper).parent.mkdir(exist_ok=True)
    (tmp_path / helper).write_text("sign = 1\n")
    mine = project({"mine_of_test.py": f"{importing}\n{METHOD}"})
    before = foreign_sources(mine.Mine())
    (tmp_path / helper).write_text("sign = -1\n")
    after = foreign_sources(mine.Mine())
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == [helper.removesuffix(".py").replace("/", ".")]


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


def test_modules_that_import_one_another_are_read_once(tmp_path):
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import a\n")
    assert closure({"a": tmp_path / "a.py"}) == {"a": tmp_path / "a.py", "b": tmp_path / "b.py"}


def test_a_module_that_is_not_valid_python_is_known_by_its_bytes(tmp_path):
    (tmp_path / "a.py").write_text("import b\n")
    (tmp_path / "b.py").write_text("import (\n")
    assert sorted(closure({"a": tmp_path / "a.py"})) == ["a", "b"]


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
