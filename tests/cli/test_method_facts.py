"""What is told of methods: built once for a state of the code, then kept in the cache."""

from dataclasses import asdict

import pytest

from openbench import paths
from openbench.cli import kept_facts
from openbench.cli import method_facts as module
from openbench.report.site.facts import MethodFacts

KNN = {"knn": MethodFacts("features", ("training data",), "2022", "Distance.")}


@pytest.fixture
def built(tmp_path, monkeypatch):
    """How often methods were built; the first value of the list says whether all could be."""
    found = [True]

    def build():
        found.append(len(found))
        return {name: asdict(facts) for name, facts in KNN.items()}, found[0]

    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_built", build)
    return found


def test_facts_are_built_once_and_read_back_as_they_were(built):
    assert [module.method_facts(), module.method_facts()] == [KNN, KNN]
    assert len(built) == 2


def test_facts_of_other_code_are_built_again(built, monkeypatch):
    module.method_facts()
    monkeypatch.setattr(kept_facts, "code_digest", lambda: "another")
    assert module.method_facts() == KNN
    assert len(built) == 3


def test_facts_of_other_manifests_are_built_again(built, monkeypatch, tmp_path):
    lists = tmp_path / "lists" / "cifar10"
    lists.mkdir(parents=True)
    monkeypatch.setattr(paths, "manifest_dir", lambda: lists.parent)
    for text in ("cat", "cow"):
        kept_facts._lists_digest.cache_clear()
        (lists / "classes.txt").write_text(text)
        module.method_facts()
    kept_facts._lists_digest.cache_clear()
    assert len(built) == 3


def test_facts_are_not_kept_while_a_method_cannot_be_built(built):
    built[0] = False
    module.method_facts()
    module.method_facts()
    assert len(built) == 3


def test_damaged_facts_are_built_again(built, tmp_path):
    module.method_facts()
    (file,) = tmp_path.rglob("*.facts")
    file.write_bytes(file.read_bytes().replace(b"Distance", b"Distanse"))
    assert module.method_facts() == KNN
