"""A small config folder and a stand-in engine, so that the command line is tested by itself."""

import json
import logging
import re
import shutil
import sys
import textwrap
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from openbench import paths
from openbench.__main__ import main
from tests.results.records import make_record

TOY_FILES = {
    "benchmark/digits.yaml": """
        # @package _global_
        defaults:
          - override /backbone: tiny
        benchmark: {name: digits, near: {eight: 8, nine: 9}, incomplete: error}
    """,
    "benchmark/letters.yaml": """
        # @package _global_
        benchmark: {name: letters, near: {a: 1}, incomplete: error}
    """,
    "backbone/resnet18_cifar.yaml": "weights: null",
    "backbone/tiny.yaml": "weights: null",
    "training/cross_entropy.yaml": "epochs: 3",
    "metrics/default.yaml": "delta: 0.05",
    "method/msp.yaml": "_target_: toy.MSP",
    "method/knn.yaml": """
        _target_: toy.KNN
        k: 50
        _space_: {k: [1, 5]}
    """,
}


@dataclass
class Engine:
    """Remembers what it was asked for; a method named in `broken` fails the way a user's mistake does."""

    asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    broken: dict[str, Exception] = field(default_factory=dict)
    overrides: list[tuple[str, ...]] = field(default_factory=list)
    problems: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)

    def prepare(self, config: dict[str, Any], setting: Any, shared: Any, overrides: Any) -> dict[str, Any]:
        self.overrides.append(overrides)
        return config

    def answer(self, command: str, config: dict[str, Any], runtime: dict[str, Any]) -> Any:
        self.asked.append((command, config, runtime))
        name = config["method"]["_name_"]
        if name in self.broken:
            raise self.broken[name]
        return name

    def run(self, config: dict[str, Any], runtime: dict[str, Any]) -> Any:
        name = self.answer("run", config, runtime)
        logging.getLogger("openbench.engine.run").info(f"scoring {name}")
        record = make_record(
            run_id="0" * 16,
            benchmark={"name": "digits", "digest": "d", "pristine": True, "deviations": []},
            method={"name": name, "version": 1, "reference": "", "params": {}},
            metrics={"near": {"auroc": 0.875}, "far": {"auroc": 0.9375}},
            provenance=self.provenance,
        )
        path = paths.results_dir() / "records" / "x.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return types.SimpleNamespace(record=record, path=path, status="written", notes=(), warnings=())

    def train(self, config: dict[str, Any], runtime: dict[str, Any]) -> Any:
        name = self.answer("train", config, runtime)
        from openbench.training.loop.weights import Trained

        checkpoint: Any = types.SimpleNamespace(weights=Path(f"checkpoints/{name}.safetensors"))
        backbone: Any = types.SimpleNamespace(name="tiny")
        return Trained(backbone, checkpoint)

    def extract(self, config: dict[str, Any], runtime: dict[str, Any]) -> dict[str, int]:
        self.answer("extract", config, runtime)
        return {"id_train/digits": 1500, "near/eight": 0}

    def check(self, config: dict[str, Any], runtime: dict[str, Any]) -> Any:
        self.answer("check", config, runtime)
        return types.SimpleNamespace(ok=not self.problems, verdict="problems: 1" if self.problems else "ok")


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our primary configs, runtimes and tunings beside toy groups, in place of the shipped folder."""
    folder = tmp_path / "configs"
    shipped = paths.config_dir()
    folder.mkdir()
    for file in shipped.glob("*.yaml"):
        shutil.copy(file, folder)
    for group in ("runtime", "tune"):
        shutil.copytree(shipped / group, folder / group)
    for name, text in TOY_FILES.items():
        write(folder / name, text)
    monkeypatch.setattr(paths, "config_dir", lambda: folder)
    return folder


@pytest.fixture
def engine(configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The stand-in engine, with cache, results and working directory in an empty place."""
    fake = Engine(broken={})
    jobs = {"train": fake.train, "extract": fake.extract, "check": fake.check}
    stand_ins = {"prepare": {"prepare": fake.prepare, "SharedObjects": object, **jobs}, "run": {"run": fake.run}}
    for name, functions in stand_ins.items():
        module = types.ModuleType(f"openbench.engine.{name}")
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return fake


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with its own data, cache and results."""
    for name in ("DATA", "CACHE", "RESULTS"):
        monkeypatch.setenv(f"OPENBENCH_{name}", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


QUICK = ["--replicates", "0", "--correction", "simes"]


def numbers(file: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Every number that `evaluate` finds in a file of scores, by set and key."""
    out = file.with_suffix(".json")
    assert main(["evaluate", str(file), "--json", str(out), *QUICK, *options]) == 0
    text = out.read_text()
    assert not re.search(r"\b(NaN|Infinity)\b", text)
    return json.loads(text)


def write(file: Path, text: str) -> None:
    """Write a yaml whose lines may be indented as a block."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text).lstrip("\n") + "\n")
