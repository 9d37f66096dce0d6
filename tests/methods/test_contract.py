"""Every method of configs/method, at its defaults and at each choice of its options, against the public checks."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import openbench.methods
from openbench.config.build import build, target_of
from openbench.core.method import Method
from openbench.errors import ConfigError, MethodError, NotApplicableError
from openbench.storage.plain_json import plain
from openbench.testing._checks import all_checks
from openbench.testing._toy import declared, fitted, planted
from tests.conftest import seed_all

from .discovered import COMPOSITES, NODES, PRESETS, label, node_of, variants

# (method, option) → {check: why it cannot hold}. Each entry must fail, or it has to go.
BETWEEN = "the planted OOD samples lie between the clusters, within the range of every feature; it sees single features"
RANK_ONE = "a planted map is its feature vector times a texture, almost of rank one: what is left of it is noise"
KNOWN_FAILURES: dict[tuple[str, str], dict[str, str]] = {
    ("copod", "copod"): {"check_separates_planted_clusters": BETWEEN},
    ("hbos", "hbos"): {"check_separates_planted_clusters": BETWEEN},
    ("iforest", "iforest"): {"check_separates_planted_clusters": BETWEEN},
    ("ocsvm", "ocsvm"): {
        "check_separates_planted_clusters": "its kernel of width √d is wider than the gaps where planted OOD lies"
    },
    ("neco", "neco[max_logit=False]"): {
        "check_separates_planted_clusters": "standardised, the dimensions where planted OOD lies vary as much as others"
    },
    ("rankfeat", "rankfeat"): {"check_separates_planted_clusters": RANK_ONE},
    ("rankfeat", "rankfeat[solver=power]"): {"check_separates_planted_clusters": RANK_ONE},
}


def failures(make: Callable[[], Method]) -> dict[str, Exception]:
    """Every check that fails, by its name, with what it raises."""
    found: dict[str, Exception] = {}
    for check in all_checks():
        seed_all()  # a check draws what it draws alone
        try:
            check(make)
        except Exception as error:  # a method may raise anything; each check reports for itself
            found[check.__name__] = error
    return found


@pytest.mark.parametrize("variant", [pytest.param(case, id=label(case)) for case in variants()])
def test_method_keeps_the_contract(variant):
    """All checks in one case, since a case of its own for each costs as much as the check."""
    name, change = variant
    node = node_of(name, change)
    try:
        build(node, name)
    except NotApplicableError as error:  # e.g. for want of an extra
        pytest.skip(str(error))
    found, known = failures(lambda: build(node, name)), KNOWN_FAILURES.get((name, label(variant)), {})
    if unknown := sorted(found.keys() - known.keys()):
        raise ExceptionGroup(f"{label(variant)} fails {', '.join(unknown)}", [found[check] for check in unknown])
    assert sorted(known.keys() - found.keys()) == [], "known failures that are none any more"
    if known:
        pytest.xfail("; ".join(f"{check}: {why}" for check, why in known.items()))


@pytest.mark.parametrize(
    "name", [name for name, node in NODES.items() if name not in COMPOSITES and target_of(node).read_by_score]
)
def test_fit_does_not_read_what_is_declared_for_the_score_alone(name):
    node, data = node_of(name), planted()
    for key in target_of(node).read_by_score:
        used = fitted(build(node, name), data)
        x = declared(data.ood_test, used.request).without_labels()
        before = used.score(x)
        for other in (value for value in node["_space_"][key] if value != node[key]):
            setattr(used, key, other)
            if not torch.equal(used.score(x), before):
                break
        assert not torch.equal(used.score(x), before), f"{key} changes no score"
        fresh = fitted(build({**node, key: other}, name), data)
        assert torch.equal(used.score(x), fresh.score(x))


def test_defaults_of_yaml_and_class_agree():
    """A library user who writes KNN() runs what `method=knn` runs."""
    own = sorted(set(NODES) - COMPOSITES - PRESETS)
    made = {name: (plain(build(NODES[name], name).params()), plain(target_of(NODES[name])().params())) for name in own}
    assert {name: pair for name, pair in made.items() if pair[0] != pair[1]} == {}


def test_every_value_of_the_search_space_is_accepted_by_the_class():
    offenders = []
    for name, node in NODES.items():
        for key, values in node.get("_space_", {}).items():
            if not len(values) == len(set(map(str, values))) > 1:
                offenders.append(f"{name}.{key}: a search needs different values")
            for value in values:
                try:
                    found = build({**node, key: value}, name).params()[key]
                except (ConfigError, MethodError) as error:
                    found = error
                if found != value:
                    offenders.append(f"{name}.{key}: {value} becomes {found!r}")
    assert offenders == []


def test_the_search_space_holds_the_default():
    """Tuning can then never do worse on validation than not tuning."""
    spaces = [(name, node, key) for name, node in NODES.items() for key in node.get("_space_", {})]
    assert [f"{name}.{key}" for name, node, key in spaces if node[key] not in node["_space_"][key]] == []


def test_every_module_of_methods_has_a_config():
    folder = Path(openbench.methods.__file__).parent
    modules = {node["_target_"].split(".")[2] for node in NODES.values()}
    assert {file.stem for file in folder.glob("[a-z]*.py")} == modules


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("ash", {"percentile": 90, "variant": "b"}),  # pytorch-ood: s at 65, oodeel: s
        ("dice", {"percentile": 90}),
        ("energy", {"temperature": 1}),
        ("gen", {"gamma": 0.1, "top": 100}),  # pytorch-ood: all classes
        ("gradnorm", {"temperature": 1, "mean": False}),
        ("knn", {"k": 50}),
        ("odin", {"temperature": 1000, "epsilon": 0.0014}),  # oodeel: .014
        ("react", {"percentile": 90}),  # oodeel: 80
        ("she", {"metric": "inner_product"}),
        ("vim", {"dim": "auto"}),  # 256; oodeel: as many as hold 99 % of the variance
    ],
)
def test_settings_are_those_of_the_published_tables(name, published):
    found = build(NODES[name], name).params()
    assert {key: found[key] for key in published} == published
