"""The documents tell the truth: their Python runs, their paths exist, their commands compose."""

import importlib
import re
from pathlib import Path

import pytest

from openbench.cli import registry
from openbench.cli.app import COMMANDS
from openbench.testing import check_method

from .documents import FENCE, blocks, commands, composes

ROOT = Path(__file__).parents[1]
STARTED_IN = ("README.md", "CONTRIBUTING.md", ".ci/run")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "SECURITY.md")]


def test_python_of_the_contribution_guide_keeps_the_contract(tmp_path, monkeypatch):
    (block,) = blocks(ROOT / "CONTRIBUTING.md", "python")
    (tmp_path / "scaled_logit.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("scaled_logit").ScaledLogit
    check_method(found)
    assert found.search is not found.__mro__[1].search


def test_the_method_of_the_readme_passes_the_checks_of_a_method(tmp_path, monkeypatch):
    (block,) = blocks(ROOT / "README.md", "python")
    (tmp_path / "nearest_mean.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    check_method(importlib.import_module("nearest_mean").NearestMean)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_module_that_a_page_names_is_there(page):
    text = FENCE.sub("", page.read_text())
    linked = re.findall(r"\]\((?!http|#)([^)#]+)", text)
    missing = [target for target in linked if not (page.parent / target).exists()]
    quoted = re.findall(r"`((?:openbench|configs|data_manifests|tests|docs|scripts|results)/[\w./-]*)`", text)
    missing += [path for path in quoted if not (ROOT / path).exists()]
    for name in re.findall(r"`(openbench(?:\.\w+)+)`", text):
        importlib.import_module(name)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page):
    unknown = [words for words in commands(page) if words[0] not in COMMANDS]
    assert unknown == []
    for words in commands(page):
        if words[0] in ("run", "train", "extract", "check") and not {"--config-dir"} & set(words):
            composes(words)


def test_every_run_id_of_an_example_is_that_of_a_record():
    pages = [page for pattern in ("docs/*/*.md", "openbench/**/*.py") for page in ROOT.glob(pattern)]
    examples = "".join(re.findall(r"-m openbench .*|load\(.*", "\n".join(page.read_text() for page in pages)))
    named = set(re.findall(r"\b(?=[a-f]*\d)(?=\d*[a-f])[\da-f]{6,16}\b", examples))
    assert [run for run in named if not [*ROOT.glob(f"results/records/*/*/*/{run}*.json")]] == []


def test_the_readme_says_how_much_there_is():
    counts = [f"{len(registry.entries(kind))} {kind}s" for kind in ("method", "training", "benchmark")]
    assert "{}, {} and {}".format(*counts) in (ROOT / "README.md").read_text().replace("\n", " ")


def test_the_readme_has_commands_and_a_wrong_one_is_noticed():
    assert len(commands(ROOT / "README.md")) > 6
    with pytest.raises(Exception, match="nosuch"):
        composes(["run", "+benchmark=digits", "method=nosuch"])


def test_all_tests_are_started_by_one_command():
    """In the two pages for people and in the check of a change, which keeps no cache of pytest's."""
    found = [
        [re.split(r" +#| -p no:", text)[0].strip() for text in re.findall(r"python (-m pytest -n .*)", page)]
        for page in ((ROOT / name).read_text() for name in STARTED_IN)
    ]
    assert found == [["-m pytest -n auto --dist worksteal"]] * 3
