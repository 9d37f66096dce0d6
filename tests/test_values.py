"""Values of every kind under every key of every config group: the right kind is taken, another is a plain error.

A sample of them by default; all of them, in some minutes, with OPENBENCH_TEST_VALUES=all.
"""

import copy
import functools
import math
import os
import random
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from openbench.backbones.base import Backbone
from openbench.compose.config import compose, options, plain
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.core.preprocess import Preprocess
from openbench.core.runtime import Runtime
from openbench.data.build import build_benchmark
from openbench.data.dataset import SetConfig
from openbench.engine.prepare import build_method
from openbench.engine.tune import Tuning
from openbench.errors import OpenbenchError
from openbench.metrics.suite import MetricOptions
from openbench.training.loop.weights import build_training
from openbench.training.recipe import Recipe

ALL = os.environ.get("OPENBENCH_TEST_VALUES") == "all"
GROUPS = (
    *("method", "training", "recipe", "augment", "backbone", "dataset", "outliers", "benchmark"),
    *("metrics", "tune", "runtime"),
)
HUGE = 10**30
TAKE_MORE = {"dim", "components", "severity", "fpr", "resize", "clip"}  # keys of numbers and of other kinds
VALUES = (None, True, -1, 0, 1.5, 1e300, math.nan, math.inf, -math.inf, "text", "", "a\0b", [], {}, [1], [None], HUGE)
FILES = 5  # of each group, among which values are drawn
SAMPLED = {"method": 200, "training": 100, "augment": 50, "dataset": 100, "outliers": 25, "benchmark": 5}


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value of a node, lists and mappings among them."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if key != "_target_":
            yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def replaced(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    node = copy.deepcopy(node)
    inner = node
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return node


# What files of data sets take from their benchmark.
DIGITS = {**(shipped("dataset", "digits") or {}), "manifest": "digits/test"}
KNOWN = {"table": "1_ALOI", "protocol": "adbench", "draw": 1, "id": {"test": DIGITS}}


@cache
def composed(group: str, name: str) -> Any:
    """The node of a group's file as a user's command would make it."""
    if group in ("augment", "benchmark"):
        return plain(compose("run", [f"+{group}={name}"]), "training" if group == "augment" else group)
    node = shipped("dataset" if group == "outliers" else group, name)
    node = plain(OmegaConf.create({"benchmark": KNOWN, group: node}), group)
    if group in ("dataset", "outliers"):  # with what only its user can say
        own = {"sources": {"own": {**node["sources"]["own"], "path": "images"}}} if "own" in node["sources"] else {}
        node = {**node, **own, "manifest": node["manifest"] or "digits/eight"}
    return node


def made(group: str, name: str, node: Any) -> None:
    """Make what a node describes, as far as that goes without a run."""
    if group == "method":
        build_method({**node, "_name_": name})
    elif group in ("training", "augment"):
        build_training(node)
    elif group == "backbone":
        build(node, f"backbone '{name}'", Backbone, **BESIDE)
    elif group == "recipe":
        build(node, "training.recipe", Recipe)
    elif group in ("dataset", "outliers"):
        SetConfig.from_node(node, "outliers" if group == "outliers" else "benchmark.far.it").listing()
    elif group == "benchmark":
        build_benchmark(node)
    elif group == "metrics":
        build(node, "metrics", MetricOptions)
    elif group == "tune":
        build(node, "tune", Tuning)
    else:
        Runtime.from_config(node)


BESIDE = {
    "num_classes": 10,
    "preprocess": Preprocess(32, 32),
    "classes": tuple("abcdefghij"),
    "benchmark_classes": tuple("abcdefghij"),
    "columns": None,
}


def names_of(group: str) -> list[str]:
    # Other benchmarks differ in their sets only, which are among the data sets; launchers add no key of ours.
    names = {"benchmark": ["digits"], "runtime": ["local"], "outliers": options("dataset")}.get(group) or options(group)
    return names if ALL else random.sample(names, min(len(names), FILES))


def every(group: str) -> list[tuple[str, Any, tuple[Any, ...], Any]]:
    """Name of the file, its node, the path in it and the value to put there: all of a group."""
    found = []
    for name in names_of(group):
        node = composed(group, name)
        paths = [path for path in places(node) if not any(str(key).startswith("_") for key in path)]
        found += [(name, node, path, value) for path in paths for value in VALUES]
        space = node.get("_space_") or {} if group == "method" else {}
        found += [(name, node, ("_space_", key, 0), value) for key in space for value in VALUES]
    return found


def is_wrong(value: Any, shown: Any, key: Any) -> bool:
    """Whether a value cannot be meant where the yaml shows another, whatever the key is."""
    if isinstance(value, float) and not math.isfinite(value):
        return True
    if isinstance(shown, bool) or isinstance(value, bool):
        return shown is not None and type(value) is not type(shown)
    if isinstance(shown, int | float):
        return isinstance(value, str | list | dict) and key not in TAKE_MORE
    return isinstance(shown, str | list | dict) and isinstance(value, int | float) and key not in TAKE_MORE


def faults(group: str, cases: list[tuple[str, Any, tuple[Any, ...], Any]]) -> list[str]:
    """What was taken of the wrong kind, or ended in an exception that is not ours."""
    found = []
    for name, node, path, value in cases:
        what = f"{group}={name} {'.'.join(map(str, path))}={str(value)[:20]!r}"
        try:
            made(group, name, replaced(node, path, value))
        except OpenbenchError:
            continue
        except Exception as error:
            found.append(f"{what}: {type(error).__name__}: {str(error)[:80]}")
        else:
            key = next(part for part in reversed(path) if isinstance(part, str))
            shown = functools.reduce(lambda inner, part: inner[part], path, node)
            if "options" not in path[:-1] and is_wrong(value, shown, key):  # a library's own are its own
                found.append(f"{what}: taken")
    return found


@pytest.fixture
def unfilled(monkeypatch):
    """Networks keep the weights that their memory happens to hold, and nothing is asked of the network."""
    for name in ("kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_", "xavier_uniform_"):
        monkeypatch.setattr(torch.nn.init, name, lambda tensor, *arguments, **named: tensor)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if "huggingface_hub.constants" in sys.modules:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.usefixtures("unfilled")
@pytest.mark.parametrize("group", [g for g in GROUPS if ALL or g != "backbone"])
def test_values_of_the_wrong_kind_are_errors_and_nothing_else(group):
    cases = every(group)
    if not ALL and group in SAMPLED:
        cases = random.sample(cases, min(len(cases), SAMPLED[group]))
    assert faults(group, cases) == []


@pytest.mark.parametrize("group", ["method", "training", "recipe", "metrics", "tune", "runtime", "dataset", "outliers"])
def test_values_of_the_files_themselves_are_taken(group):
    for name in names_of(group):
        made(group, name, composed(group, name))


def test_a_value_is_kept_as_it_was_written():
    method = build_method({"_target_": "openbench.methods.shaping.ReAct", "percentile": 90}).method
    assert type(method.params()["percentile"]) is int


_KNN, _COUNT = "methods.knn.KNN", "allowed: a whole number ≥ 1"


@pytest.mark.parametrize(
    ("group", "target", "values", "message"),
    [
        ("method", _KNN, {"k": None}, f"k — found null, {_COUNT}"),
        ("method", _KNN, {"_space_": {"k": [5, "ten"]}}, f"_space_.k — found 'ten', {_COUNT}"),
        (
            *("method", _KNN, {"index": "exakt"}),
            "index — found 'exakt', allowed: exact, faiss_flat, ivf, hnsw; did you mean 'exact'?",
        ),
        ("runtime", "", {"progress": 7}, "progress — found 7, allowed: true or false"),
        ("runtime", "", {"cache": "a\0b"}, "cache — found 'a\\x00b', allowed: a path, or null"),
    ],
)
def test_the_message_says_what_was_found_and_what_is_allowed(group, target, values, message):
    with pytest.raises(OpenbenchError) as caught:
        made(group, "it", {"_target_": f"openbench.{target}", **values} if target else values)
    where = "method 'it'" if group == "method" else group
    assert str(caught.value) == f"{where}.{message}"


def test_a_space_of_which_every_setting_is_refused_is_an_error_before_anything_is_computed():
    space = {"low": [95, 96]}  # the upper percentile is 90
    with pytest.raises(OpenbenchError, match=r"VRA\.low"):
        build_method({"_target_": "openbench.methods.shaping.VRA", "_name_": "vra", "_space_": space})
