"""How a run is carried out: the defaults, and the folders that follow from two."""

from dataclasses import fields
from pathlib import Path

import yaml

from openbench import paths
from openbench.core.runtime import Runtime


def test_defaults_in_code_are_those_of_the_config(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    node = yaml.safe_load((paths.config_dir() / "runtime" / "local.yaml").read_text(encoding="utf-8"))
    assert Runtime.from_config(node) == Runtime()
    assert node.keys() == {field.name for field in fields(Runtime)}
    assert (Runtime().cache, Runtime().records) == (tmp_path / "cache", tmp_path / "results")


def test_what_is_kept_has_folders_of_its_own_in_the_cache(tmp_path):
    setting = Runtime(cache=tmp_path, results=tmp_path / "results")
    found = {getattr(setting, name) for name in ("features", "scores", "checkpoints")}
    assert found == {tmp_path / name for name in ("features", "scores", "checkpoints")}
    assert Runtime(cache=Path("~/x")).cache == Path.home() / "x"
