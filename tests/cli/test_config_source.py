"""The source that Hydra reads config files from."""

import os
import subprocess
import sys

import pytest

from openbench import paths
from openbench.compose import config_source
from openbench.compose.config import compose, search_path
from openbench.errors import ConfigError

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


@pytest.mark.slow
def test_a_worker_process_that_takes_over_hydras_state_reads_configs_as_this_one():
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n"])
def test_an_empty_config_file_says_nothing(tmp_path, text):
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "void.yaml").write_text(text)
    assert compose("check", ["+benchmark=void"], tmp_path)["benchmark"] == {}


def test_a_name_is_spelt_as_its_file_where_the_file_system_does_not_care(monkeypatch):
    isfile = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: isfile(path.replace("KNN", "knn")))  # as on macOS and Windows
    source = config_source.FileConfigSource("test", str(paths.config_dir()))
    assert [source.is_config(name) for name in ("method/knn", "run", "method/KNN")] == [True, True, False]


@pytest.mark.parametrize("words", [["+benchmark=digits", "method=knn.yaml"], ["+benchmark=digits.yaml"]])
def test_a_file_is_not_a_name(words):
    with pytest.raises(ConfigError, match=r"\.yaml' — a name is needed, not a file — write (knn|digits)"):
        compose("run", words)


def test_a_folder_of_any_name_is_searched(tmp_path):
    folder = tmp_path / "my ü, %20 {dir}"
    (folder / "method").mkdir(parents=True)
    (folder / "method" / "mine.yaml").write_text("# mine\nk: 7\n", encoding="utf-8")
    assert compose("run", ["+benchmark=digits", "method=mine"], folder).method == {"k": 7}
    assert search_path(folder) == [f"hydra.searchpath=['file://{folder.as_posix()}']"]  # a drive's letter stays first


def test_a_file_that_is_changed_is_read_again_and_configs_share_nothing(tmp_path):
    file = tmp_path / "method" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("k: [7]\n")
    words = ["+benchmark=digits", "method=mine"]
    first = compose("run", words, tmp_path)
    first.method.k[0] = 8
    assert compose("run", words, tmp_path).method == {"k": [7]}
    file.write_text("k: [9]\n")
    assert compose("run", words, tmp_path).method == {"k": [9]}


def test_defaults_may_refer_to_what_else_is_chosen(tmp_path):
    for place, text in {
        "method/mine.yaml": "defaults:\n  - /part@part: of_${tune}\nk: 7\n",
        "part/of_none.yaml": "size: 3\n",
        "part/of_validation.yaml": "size: 4\n",
    }.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    found = [
        compose("run", ["+benchmark=digits", "method=mine", f"tune={name}"], tmp_path).method
        for name in ("none", "validation")
    ]
    assert found == [{"part": {"size": 3}, "k": 7}, {"part": {"size": 4}, "k": 7}]
