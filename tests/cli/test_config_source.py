"""The source that Hydra reads config files from."""

import subprocess
import sys

import pytest

from openbench.compose.config import compose

# As the launchers of joblib, Slurm and Ray do: the state is pickled, and all plug-ins register once more.
WORKER = """
import pickle
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.singleton import Singleton
from openbench.compose import config_source
from openbench.compose.config import compose

compose("check", ["+benchmark=digits"])
state = Singleton.get_state()
Singleton.set_state({**state, "instances": pickle.loads(pickle.dumps(state["instances"]))})
assert SourcesRegistry.instance().resolve("file") is config_source.FileConfigSource
"""


def test_a_worker_process_that_takes_over_hydras_state_reads_configs_as_this_one():
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n"])
def test_an_empty_config_file_says_nothing(tmp_path, text):
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "void.yaml").write_text(text)
    assert compose("check", ["+benchmark=void"], tmp_path)["benchmark"] == {}
