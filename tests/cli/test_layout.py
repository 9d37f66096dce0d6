"""Where the package looks for its configs and manifests: the same from a checkout and from an installed wheel."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import openbench
from openbench import paths

ROOT = Path(openbench.__file__).parent.parent


@pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="this copy of openbench is not a checkout")
def test_a_checkout_uses_the_folders_at_its_top():
    assert paths.config_dir() == ROOT / "configs"
    assert paths.manifest_dir() == ROOT / "data_manifests"


def test_a_folder_named_by_an_empty_variable_is_the_default_and_not_the_working_directory(monkeypatch):
    for name in ("OPENBENCH_RESULTS", "OPENBENCH_CACHE", "OPENBENCH_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
    found = paths.results_dir(), paths.cache_dir(), paths.data_roots()
    assert found == (Path("results"), Path.home() / ".cache" / "openbench", (Path("data"),))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    builder = pytest.importorskip("hatchling.builders.wheel", reason="the build backend: pip install hatchling")
    folder = str(tmp_path_factory.mktemp("wheel"))
    return Path(*builder.WheelBuilder(str(ROOT)).build(directory=folder, versions=["standard"]))


def test_the_wheel_holds_every_config_and_manifest_and_no_test(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("configs", "data_manifests"):
        files = [f for f in (ROOT / folder).rglob("*") if f.is_file() and not f.name.startswith(".")]
        missing = {f"openbench/{f.relative_to(ROOT).as_posix()}" for f in files} - names
        assert files, folder
        assert missing == set(), folder
    modules = {f.relative_to(ROOT).as_posix() for f in (ROOT / "openbench").rglob("*.py")}
    assert modules | {"openbench/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests/", "results/", "scripts/"))]


def test_an_installed_wheel_works_by_itself(wheel, tmp_path):
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    zipfile.ZipFile(wheel).extractall(site)  # what pip does with a pure wheel
    environment = {**os.environ, "PYTHONPATH": str(site), "OPENBENCH_CACHE": str(work / "cache")}
    command = [sys.executable, "-m", "openbench", "show", "backbone", "resnet8_digits"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# {site / 'openbench' / 'configs'}")
    assert list(work.iterdir()) == []
