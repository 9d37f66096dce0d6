"""Packages that bring configs by an entry point, and folders in OPENBENCH_CONFIG_DIR."""

import csv
import io
import os
import shutil
import sys

import pytest

import openbench as ob
from openbench.__main__ import main
from openbench.cli.commands.listing import _complete_name
from openbench.config.folders import packages_of
from openbench.data.manifests import load_classes, load_manifest
from openbench.errors import ConfigError
from openbench.studies.study import names, study

from .conftest import write

METHOD = "# Theirs.\n_target_: openbench.methods.knn.KNN\nk: 7\n"


@pytest.fixture(autouse=True)
def no_other_folders(monkeypatch):
    monkeypatch.delenv("OPENBENCH_CONFIG_DIR", raising=False)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with some config files, as pip leaves it."""

    def installed(name="theirs", files=None, version="1.2", code=""):
        site, module = tmp_path / f"site_{name}", name.replace("-", "_")
        write(site / module / "__init__.py", code)
        (site / module / "configs").mkdir()
        for path, text in (files or {f"method/{name}.yaml": METHOD}).items():
            write(site / module / "configs" / path, text)
        about = site / f"{module}-1.dist-info"
        write(about / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
        write(about / "entry_points.txt", f"[openbench.configs]\n{module} = {module}.configs")
        monkeypatch.syspath_prepend(str(site))
        return site / module / "configs"

    return installed


def listed(capsys, group):
    """The rows of a list, and the lines on stderr."""
    assert main(["list", group, "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(out))), err.splitlines()


def test_methods_and_other_groups_of_a_package_are_found(engine, install):
    benchmark = "# @package _global_\ndefaults: [digits]\nbenchmark: {name: more}\n"
    install(files={"benchmark/more.yaml": benchmark, "training/long.yaml": "epochs: 9\n", "method/theirs.yaml": METHOD})
    assert main(["run", "+benchmark=more", "training=long", "method=theirs", "method.k=9"]) == 0
    config = engine.asked[0][1]
    assert (config["benchmark"]["name"], config["training"]["epochs"]) == ("more", 9)
    assert config["method"] == {"_target_": "openbench.methods.knn.KNN", "k": 9, "_name_": "theirs"}


def test_python_studies_and_the_tab_key_find_names_of_packages(install):
    files = {"method/theirs.yaml": "defaults: [knn]\nk: 7\n", "study/sub/table.yaml": "title: t\n"}
    folder = install(files=files)
    assert ob.method("theirs").get_params()["k"] == 7
    assert names()["sub/table"] == folder / "study/sub/table.yaml"
    assert _complete_name(type("C", (), {"params": {"group": "method"}}), None, "theirs") == ["theirs"]


def test_lists_of_a_package_are_found(install, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    install(files={"lists/set.csv": "path,label\na/0,cat\na/1,dog\n", "lists/classes.txt": "cat\ndog\n"})
    assert load_manifest("lists/set.csv").classes == ("cat", "dog")
    assert load_classes("lists/classes") == ("cat", "dog")


def test_a_list_says_where_entries_are_from_if_not_all_are_ours(configs, install, capsys, tmp_path, monkeypatch):
    assert "from" not in listed(capsys, "training")[0][0]
    install(files={"training/long.yaml": "# Longer.\nepochs: 9\n"})
    write(tmp_path / "own/training/short.yaml", "# Shorter.\nepochs: 1")
    monkeypatch.setenv("OPENBENCH_CONFIG_DIR", str(tmp_path / "own"))
    rows, lines = listed(capsys, "training")
    origins = {"cross_entropy": "openbench", "long": "theirs 1.2", "short": str(tmp_path / "own")}
    assert ({row["name"]: row["from"] for row in rows}, lines) == (origins, [])


def test_the_variable_names_several_folders(engine, tmp_path, monkeypatch, capsys):
    for name in ("one", "two"):
        write(tmp_path / name / "method" / f"{name}.yaml", METHOD)
    folders = [str(tmp_path / name) for name in ("one", "two", "gone")]
    monkeypatch.setenv("OPENBENCH_CONFIG_DIR", os.pathsep.join(folders))
    assert [main(["run", "+benchmark=digits", f"method={name}"]) for name in ("one", "two")] == [0, 0]
    (line,) = {line for line in capsys.readouterr().err.splitlines() if line.startswith("OPENBENCH_CONFIG_DIR")}
    assert f"'{folders[2]}' is left out, as it is not a folder" in line
    # The same folder may be typed too.
    assert main(["run", "+benchmark=digits", "method=one", "--config-dir", folders[0]]) == 0
    assert len(engine.asked) == 3


@pytest.mark.parametrize(
    ("name", "owners"), [("method/twice", ["others 3", "theirs 1.2"]), ("method/knn", ["openbench", "theirs 1.2"])]
)
def test_a_name_that_two_have_is_an_error_that_names_both(name, owners, engine, install, capsys):
    install("theirs", {f"{name}.yaml": METHOD})
    if "others 3" in owners:
        install("others", {f"{name}.yaml": METHOD}, "3")
    group, _, stem = name.partition("/")
    message = f"{group} '{stem}' is the name of several configs, from {' and from '.join(owners)} — "
    for words in (["run", "+benchmark=digits", "method=msp"], ["list", "training"], ["show", "method", "msp"]):
        assert main(words) == 2
        assert capsys.readouterr().err == f"error: {message}uninstall one package, or rename your own file\n"
    for find in (ob.method, study):
        with pytest.raises(ConfigError, match="is the name of several configs"):
            find("msp")


def test_a_package_that_is_not_there_is_one_line(engine, install, capsys):
    shutil.rmtree(install("theirs"))
    install("others")
    assert main(["run", "+benchmark=digits", "method=others"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line.startswith("package theirs 1.2 is left out: 'theirs.configs', its folder of configs, is not there — ")


def test_a_package_is_not_imported_until_its_class_is_needed(configs, install, capsys):
    (configs / "method/msp.yaml").write_text("_target_: openbench.methods.msp.MSP\n")
    (configs / "method/knn.yaml").write_text("_target_: openbench.methods.knn.KNN\n")
    files = {"method/bad_class.yaml": "_target_: theirs.Method\n", "method/theirs.yaml": METHOD}
    install(files=files, code="raise RuntimeError('not today')")
    assert listed(capsys, "training")[1] == []
    assert "theirs" not in sys.modules
    rows, lines = listed(capsys, "method")
    assert [row["name"] for row in rows] == ["knn", "msp", "theirs"]
    assert lines == ["method 'bad_class' of theirs 1.2 is left out: not today"]


def test_a_broken_yaml_of_a_package_is_an_error_that_names_it(engine, install, capsys):
    install(files={"method/bad.yaml": "_target_: [broken\n"})
    for method in (["method=bad"], ["-m", "method=glob(*)"]):
        assert main(["run", "+benchmark=digits", *method]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: package theirs 1.2: the config does not compose — ")
        assert "site_theirs/theirs/configs/method/bad.yaml" in line
    assert main(["run", "+benchmark=digits"]) == 0
    with pytest.raises(ConfigError, match=r"^package theirs 1\.2: '.*method/bad\.yaml' is not valid YAML"):
        ob.method("bad")


def test_the_package_of_a_module_and_its_version_are_known(install):
    install("their-methods", version="2.0")
    assert packages_of(["their_methods.knn", "json"]) == {"package their-methods": "2.0"}
    assert packages_of(["openbench.methods.knn"]) == {}
