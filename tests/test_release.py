"""What is published is described once, and the forge's files are what the forge expects."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
import yaml

import openbench
from openbench.errors import pip_install

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_workflows_and_citation_hold_to_their_schemas(capsys):
    check = pytest.importorskip("check_jsonschema", reason="extra dev").main
    for schema, files in (
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ):
        code = check(["--builtin-schema", schema, *map(str, files)], standalone_mode=False)
        assert code == 0, capsys.readouterr()


def test_no_workflow_may_write_but_where_it_publishes():
    for file in WORKFLOWS:
        workflow = yaml.safe_load(file.read_text())
        assert workflow["permissions"] == {"contents": "read"}, file.name
        for name, job in workflow["jobs"].items():
            rights = {right for right, value in job.get("permissions", {}).items() if value == "write"}
            assert rights <= ({"id-token", "pages"} if name in ("deploy", "publish") else set()), (file.name, name)


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "openbench/__init__.py"
    assert openbench.__version__.count(".") == 2


def test_nobody_is_told_to_install_the_other_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pip_install("slurm") == f"pip install '{project['name']}[slurm]'"
    files = [p for name in ("openbench", "configs", "scripts") for p in (ROOT / name).rglob("*") if p.is_file()]
    files += [ROOT / "README.md", ROOT / "pyproject.toml"]
    wrong = re.compile(r"pip install (-\S+ )*['\"]?openbench(?!-ood)|\"openbench\[")
    found = [p for p in files if p.suffix in (".py", ".yaml", ".md", ".toml") and wrong.search(p.read_text())]
    assert found == []


def test_the_lowest_versions_are_those_of_the_bounds():
    lowest = runpy.run_path(str(ROOT / "scripts" / "lowest_versions.py"))["lowest"]

    project = {
        "name": "mine",
        "dependencies": ["torch>=2.6,<2.14", "a_b>=1", "unbounded"],
        "optional-dependencies": {
            "test": ["pytest[x]>=8.4", "mine[more,own]"],
            "more": ["m~=3.1"],
            "own": ["o==1.0.post1"],
        },
    }
    found = {"torch": "2.6", "a_b": "1"}
    assert lowest(project, ()) == found
    assert lowest(project, ("test",)) == found | {"pytest": "8.4", "m": "3.1", "o": "1.0.post1"}


def test_commands_of_workflows_are_commands():
    from openbench.cli.app import COMMANDS

    lines = [line.split() for file in WORKFLOWS for line in file.read_text().splitlines() if "-m openbench " in line]
    assert lines
    assert {words[words.index("openbench") + 1] for words in lines} <= set(COMMANDS)
