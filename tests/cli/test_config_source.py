import pickle

import pytest
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.singleton import Singleton

from openbench.cli.hydra import config_source
from openbench.cli.hydra.config import compose


@pytest.fixture
def untouched(monkeypatch):
    """Hydra's global state, put back afterwards."""
    monkeypatch.setattr(Singleton, "_instances", dict(Singleton._instances))


def test_a_worker_process_that_takes_over_hydras_state_reads_configs_as_this_one(untouched):
    """What the launchers of joblib, Slurm and Ray do: the state is pickled, and all plug-ins register once more."""
    compose("check", ["+benchmark=digits"])
    state = Singleton.get_state()
    Singleton.set_state({**state, "instances": pickle.loads(pickle.dumps(state["instances"]))})
    assert SourcesRegistry.instance().resolve("file") is config_source.FileConfigSource


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n"])
def test_an_empty_config_file_says_nothing(untouched, tmp_path, text):
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "void.yaml").write_text(text)
    assert compose("check", ["+benchmark=void"], tmp_path)["benchmark"] == {}
