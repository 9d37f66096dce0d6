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
from openbench.config.folders import config_folders, packages_of
from openbench.data.manifests import load_classes, load_manifest
from openbench.errors import ConfigError
from openbench.studies.study import names, study

from .conftest import write

METHOD = "# Theirs.\n_target_: openbench.methods.knn.KNN\nk: 7\n"
BROKEN = "_target_: [broken\n"


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


def test_a_method_of_a_package_runs_from_any_folder(engine, install):
    install()
    assert main(["run", "+benchmark=digits", "method=theirs", "method.k=9"]) == 0
    assert engine.asked[0][1]["method"] == {"_target_": "openbench.methods.knn.KNN", "k": 9, "_name_": "theirs"}


def test_other_groups_of_a_package_are_found_too(engine, install):
    benchmark = "# @package _global_\ndefaults: [digits]\nbenchmark: {name: more}\n"
    install(files={"benchmark/more.yaml": benchmark, "training/long.yaml": "epochs: 9\n"})
    assert main(["run", "+benchmark=more", "training=long"]) == 0
    config = engine.asked[0][1]
    assert (config["benchmark"]["name"], config["training"]["epochs"]) == ("more", 9)


def test_sweeps_find_methods_of_packages(engine, install):
    install()
    assert main(["run", "-m", "+benchmark=digits", "method=theirs,msp"]) == 0
    assert main(["run", "-m", "+benchmark=digits", "method=glob(the*)"]) == 0
    assert [config["method"]["_name_"] for _, config, _ in engine.asked] == ["theirs", "msp", "theirs"]


def test_a_sweep_over_all_methods_leaves_out_broken_ones(engine, install, capsys):
    install(files={"method/theirs.yaml": METHOD, "method/bad.yaml": BROKEN})
    assert main(["run", "-m", "+benchmark=digits", "method=glob(*)"]) == 0
    assert [config["method"]["_name_"] for _, config, _ in engine.asked] == ["knn", "msp", "theirs"]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line.startswith("method 'bad' is left out: package theirs 1.2: '")


def test_python_finds_methods_of_packages(install):
    install(files={"method/theirs.yaml": "defaults: [knn]\nk: 7\n"})
    assert ob.method("theirs").get_params()["k"] == 7


def test_studies_and_the_tab_key_find_names_of_packages(install):
    file = install(files={"study/sub/table.yaml": "title: t\n", "method/theirs.yaml": METHOD}) / "study/sub/table.yaml"
    assert names()["sub/table"] == file
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
    assert {row["name"]: row["from"] for row in rows} == {
        "cross_entropy": "openbench",
        "long": "theirs 1.2",
        "short": str(tmp_path / "own"),
    }
    assert lines == []


def test_the_variable_names_several_folders(engine, tmp_path, monkeypatch):
    for name in ("one", "two"):
        write(tmp_path / name / "method" / f"{name}.yaml", METHOD)
    monkeypatch.setenv("OPENBENCH_CONFIG_DIR", os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]))
    assert main(["run", "-m", "+benchmark=digits", "method=one,two"]) == 0
    # The same folder may be typed too.
    assert main(["run", "+benchmark=digits", "method=one", "--config-dir", str(tmp_path / "one")]) == 0
    assert len(engine.asked) == 3


def test_a_folder_of_the_variable_that_is_not_there_is_one_line(engine, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENBENCH_CONFIG_DIR", str(tmp_path / "gone"))
    assert main(["run", "+benchmark=digits"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "gone" in line]
    assert (
        line == f"OPENBENCH_CONFIG_DIR: '{tmp_path / 'gone'}' is left out, as it is not a folder — correct the variable"
    )


@pytest.mark.parametrize("name", ["twice", "knn"])
def test_a_name_that_two_have_is_an_error_that_names_both_and_stops_nothing_else(name, engine, install, capsys):
    files = {f"method/{name}.yaml": METHOD, "study/twice.yaml": "title: t\n"}
    install("theirs", files)
    owners = ["theirs 1.2"]
    if name == "twice":
        install("others", files, "3")
        with pytest.raises(ConfigError, match=r"from others 3 and from theirs 1\.2 — "):
            study("twice")
        owners = ["others 3", *owners]
    else:
        owners = ["openbench", *owners]
    message = f"method '{name}' is the name of several configs, from {' and from '.join(owners)} — "
    message += "uninstall one package, or rename your own file"
    assert main(["run", "+benchmark=digits", f"method={name}"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    with pytest.raises(ConfigError, match="is the name of several configs"):
        ob.method(name)
    assert main(["show", "method", name]) == 2
    capsys.readouterr()
    assert main(["run", "-m", "+benchmark=digits", f"method=msp,{name}"]) == 2
    assert [config["method"]["_name_"] for _, config, _ in engine.asked] == ["msp"]
    assert "2 jobs, 1 done, 1 failed" in capsys.readouterr().err


@pytest.mark.parametrize("group", ["benchmark", "method"])
def test_a_name_in_a_list_of_defaults_that_two_have_is_an_error_too(group, engine, install, capsys):
    package = "# @package _global_\n" if group == "benchmark" else ""
    twice = {f"{group}/twice.yaml": f"{package}defaults: [{'digits' if package else 'knn'}]\n"}
    install("theirs", twice)
    install("others", {**twice, f"{group}/more.yaml": f"{package}defaults: [twice]\n"})
    words = ["+benchmark=more"] if package else ["+benchmark=digits", "method=more"]
    assert main(["run", *words]) == 2
    said = f"{group} 'twice' is the name of several configs, from others 1.2 and from theirs 1.2 — "
    assert capsys.readouterr().err.startswith(f"error: {said}")
    if group == "method":
        with pytest.raises(ConfigError, match=said):
            ob.method("more")


def test_a_list_shows_both_owners_of_a_name(configs, install, capsys):
    files = {"training/twice.yaml": "# Twice.\nepochs: 9\n"}
    install("theirs", files)
    install("others", files)
    rows, lines = listed(capsys, "training")
    assert [row["from"] for row in rows if row["name"] == "twice"] == ["others 1.2", "theirs 1.2"]
    assert [line.partition(", from ")[0] for line in lines] == ["training 'twice' is the name of several configs"]


def test_a_typed_folder_may_not_have_names_of_a_package(engine, install, tmp_path, capsys):
    install()
    write(tmp_path / "own/method/theirs.yaml", METHOD)
    assert main(["run", "+benchmark=digits", "--config-dir", str(tmp_path / "own")]) == 2
    assert "has the name of a config that theirs 1.2 ships (method/theirs.yaml)" in capsys.readouterr().err


def test_a_package_that_is_not_there_is_one_line(engine, install, capsys):
    shutil.rmtree(install("theirs"))
    install("others")
    assert main(["run", "+benchmark=digits", "method=others"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "left out" in line]
    assert line == (
        "package theirs 1.2 is left out: 'theirs.configs', its folder of configs, is not there — install it again, or: "
        "pip uninstall theirs"
    )


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


def test_a_broken_yaml_of_a_package_is_an_error_where_it_is_used_alone(engine, install, capsys):
    install(files={"benchmark/bad.yaml": BROKEN, "method/bad.yaml": BROKEN, "benchmark/good.yaml": "# Good.\nx: 1\n"})
    assert main(["run", "+benchmark=digits", "method=bad"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: package theirs 1.2: the config does not compose — ")
    assert "site_theirs/theirs/configs/method/bad.yaml" in line
    assert main(["run", "+benchmark=digits"]) == 0
    capsys.readouterr()
    with pytest.raises(ConfigError, match=r"^package theirs 1\.2: '.*method/bad\.yaml' is not valid YAML"):
        ob.method("bad")
    rows, lines = listed(capsys, "benchmark")
    assert "good" in [row["name"] for row in rows]
    assert len(lines) == 1
    assert lines[0].startswith("benchmark 'bad' of theirs 1.2 is left out: '")


def test_the_package_of_a_module_and_its_version_are_known(install):
    install("their-methods", version="2.0")
    assert packages_of(["their_methods.knn", "json"]) == {"package their-methods": "2.0"}
    assert packages_of(["openbench.methods.knn"]) == {}


def test_names_and_versions_of_packages_have_no_control_characters(install):
    install("theirs", version="1\x1b[31m")
    assert [place.origin for place in config_folders()[1:]] == ["theirs 1??31m"]
