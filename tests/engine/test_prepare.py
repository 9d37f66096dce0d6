"""What stands between a plain config and a run: names, backbones for one class, options."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from openbench import paths
from openbench.config.folders import shipped
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.engine import prepare
from openbench.errors import ConfigError
from openbench.methods.gradients import ODIN
from openbench.methods.knn import KNN

IDENTITY = {"_target_": "openbench.backbones.rows.Identity", "name": "identity"}
RESNET = {"_target_": "openbench.backbones.cifar.resnet", "name": "tiny", "model": "resnet8"}
SCORED = (Role.ID_VAL, Role.OOD_VAL, Role.NEAR, Role.ID_TEST)
MSP = {"_target_": "openbench.methods.msp.MSP"}
CPU = Runtime(device="cpu", train="never", cache=Path("none"))


def network(node):
    return {"backbone": node, "training": shipped("training", "cross_entropy"), "seed": 0}


def benchmark(*classes, columns=None):
    return SimpleNamespace(name="toy", classes=classes, columns=columns, preprocess=Preprocess(8, 8), splits=tuple)


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"_target_": "openbench.methods.knn.KNN"}, "knn"),
        ({"_target_": "a.b.c.d.plugin.Fast"}, "plugin"),
        ({"_target_": "openbench.methods.knn.KNN", "_name_": "nearest"}, "nearest"),
        ({}, "?"),
    ],
)
def test_a_node_is_called_by_its_file_or_else_by_the_module_of_its_target(node, name):
    assert prepare.name_of(node) == name


def test_rows_of_a_table_go_with_the_identity_whatever_their_classes():
    for classes in (("normal",), ("a", "b")):
        backbone, learnt = prepare.ready_backbone(network(IDENTITY), benchmark(*classes, columns=3), CPU)
        assert (backbone.feature_dim, backbone.classifies, learnt.name) == (3, False, None)


@pytest.mark.parametrize(
    ("of", "found"), [(benchmark("a", "b", columns=3), "rows of a table"), (benchmark("a"), "a single class")]
)
def test_a_classifier_of_images_is_refused_where_nothing_is_to_classify(of, found):
    with pytest.raises(ConfigError, match=rf"benchmark 'toy' has {found}"):
        prepare.ready_backbone(network(RESNET), of, CPU)


def test_a_trained_network_goes_with_images_of_a_single_class():
    prepare.check_images(SimpleNamespace(name="net", classifies=True, trained=True, has_network=True), benchmark("a"))


def test_a_split_is_read_with_what_fitting_or_scoring_or_the_search_reads_of_it():
    method, space = ODIN(temperature=1000.0, epsilon=0.1), {"epsilon": [0.0, 0.2]}
    steps = {role: [request.perturb.epsilon for request in prepare.requests_of(method, space, role)] for role in SCORED}
    assert steps == {Role.ID_VAL: [0.0, 0.2], Role.OOD_VAL: [0.0, 0.2], Role.NEAR: [0.1], Role.ID_TEST: [0.1]}
    assert [prepare.requests_of(method, space, role) for role in (Role.ID_TRAIN, Role.OOD_TRAIN)] == [[], []]
    (fitted,) = prepare.requests_of(KNN(), {"k": [1, 5]}, Role.ID_TRAIN)
    assert (fitted, fitted.fit_on) == (KNN().request, Role.ID_TRAIN)
    assert prepare.requests_of(KNN(), {"k": [1, 5]}, Role.ID_VAL) == [KNN().request]


@pytest.mark.parametrize(("training", "read"), [("cross_entropy", None), ("outlier_exposure", {"name": "tin597"})])
def test_outliers_are_checked_where_the_training_learns_from_them(monkeypatch, tmp_path, training, read):
    seen = []
    monkeypatch.setattr(prepare, "verify_node", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(prepare.BenchmarkConfig, "parse", lambda node: node)
    config = {"benchmark": {"name": "toy"}, "training": shipped("training", training), "outliers": {"name": "tin597"}}
    prepare.check(config, {"cache": str(tmp_path)})
    assert seen == [({"name": "toy"}, read)]


def test_defaults_in_code_are_those_of_the_config(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    node = yaml.safe_load((paths.config_dir() / "runtime" / "local.yaml").read_text(encoding="utf-8"))
    assert Runtime.from_config(node) == Runtime()
    assert node.keys() == {field.name for field in fields(Runtime)}
    assert (Runtime().cache, Runtime().records) == (tmp_path / "cache", tmp_path / "results")
