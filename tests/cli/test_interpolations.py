"""`${…}` in configs of others: nothing of the environment enters a record, and nothing grows without end."""

import json

import pytest

from openbench.__main__ import main
from openbench.compose import interpolations
from openbench.compose.config import compose, plain, runtime
from openbench.compose.copies import copied
from openbench.errors import ConfigError

SECRET = "hunter2-of-the-environment"


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("OPENBENCH_TEST_SECRET", SECRET)


READS = (
    "${oc.env:OPENBENCH_TEST_SECRET}",
    "x-${oc.env:OPENBENCH_TEST_SECRET,none}",
    "${oc.decode:${oc.env:OPENBENCH_TEST_SECRET}}",
    "${${..word}.env:OPENBENCH_TEST_SECRET}",
    "${hydra:runtime.cwd}",
    "${now:%Y}",
    "${runtime.cache}",
)


NODES = ("benchmark", "backbone", "training", "method", "tune", "metrics", "outliers")


@pytest.fixture(scope="module")
def leaking():
    """A config with every text in every node, `extra.leak0`, `extra.leak1` …; composed once, which takes longest."""
    texts = [f"+{node}.extra.leak{n}='{text}'" for node in NODES for n, text in enumerate(READS)]
    words = [f"+{node}.word=oc" for node in NODES]
    cache = "runtime.cache='${oc.env:OPENBENCH_TEST_SECRET}'"
    return compose("run", ["+benchmark=digits", "dataset@outliers=tin597", *texts, *words, cache])


@pytest.mark.parametrize("number", range(len(READS)), ids=READS)
@pytest.mark.parametrize("node", NODES)
def test_the_environment_is_read_by_no_node_of_a_record(leaking, node, number):
    cfg = copied(leaking)
    cfg[node].extra = {key: text for key, text in cfg[node].extra.items_ex(resolve=False) if key == f"leak{number}"}
    with pytest.raises(ConfigError, match=r"reads what is not in the config.*write the value itself"):
        plain(cfg, node)


def test_a_seed_reads_no_environment_either(monkeypatch):
    monkeypatch.setenv("OPENBENCH_TEST_SECRET", "7")
    cfg = compose("run", ["+benchmark=digits", "seed='${oc.decode:${oc.env:OPENBENCH_TEST_SECRET}}'"])
    with pytest.raises(ConfigError, match=r"^seed: `\$\{oc.env:…\}` reads"):
        plain(cfg, "seed")


def test_the_runtime_may_read_it():
    cfg = compose("run", ["+benchmark=digits", "runtime.cache='/x/${oc.env:OPENBENCH_TEST_SECRET}'"])
    assert runtime(cfg)["cache"] == f"/x/{SECRET}"


def test_a_strangers_config_folder_writes_no_secret_anywhere(capsys, tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text(
        "_target_: openbench.methods.knn.KNN\nk: 5\nindex: ${oc.env:OPENBENCH_TEST_SECRET}\n"
    )
    code = main(["run", "+benchmark=digits", "method=mine", "--config-dir", str(tmp_path)])
    assert code == 2
    said = "".join(capsys.readouterr())
    assert SECRET not in said
    assert "method.index" in said
    assert "runtime" in said


def doubled(node, count, first):
    """A yaml in which each key stands for its predecessor twice."""
    lines = [f"x0: {first}"]
    form = "{{p: ${{method.{0}}}, q: ${{method.{0}}}}}" if node else '"${{.{0}}}${{.{0}}}"'
    return "\n".join([*lines, *(f"x{i}: {form.format(f'x{i - 1}')}" for i in range(1, count))])


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "text",
    [
        doubled(node=False, count=31, first="a"),
        doubled(node=True, count=31, first="{a: 1}"),
        f'x0: {"a" * 100_000}\nx1: "{"${.x0}" * 500}"',
        f"x0: {json.dumps([0] * 900)}\nx1: {json.dumps(['${method.x0}'] * 300)}",
        "x0: 1\n" + "\n".join(f"x{i}: ${{.x{i - 1}}}" for i in range(1, 600)),
    ],
)
def test_what_grows_by_references_is_one_message_at_once(capsys, tmp_path, text):
    # Without a bound it takes hours, or all of the memory.
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "mine.yaml").write_text(f"_target_: openbench.methods.knn.KNN\n{text}\n")
    code = main(["run", "+benchmark=digits", "method=mine", "--config-dir", str(tmp_path)])
    assert code == 2
    said = "".join(capsys.readouterr())
    assert said.count("error:") == 1
    assert "references" in said
    assert len(said) < 600


@pytest.mark.parametrize("name", ["adbench", "imagenet200_fs"])
def test_what_openbench_ships_stays_below_the_bound(name):
    cfg = compose("run", [f"+benchmark={name}"])
    for node in ("benchmark", "backbone", "training", "method", "tune", "metrics", "runtime"):
        plain(cfg, node)


def test_a_value_counts_for_each_value_in_it_and_a_long_text_for_more():
    assert interpolations._weight({"a": [1, "b"]}) == 4
    assert interpolations._weight("b" * 3 * interpolations._LONG) == 4
