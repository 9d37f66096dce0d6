"""Public names: what openbench ships is named by kind and name, wherever its code lies."""

import importlib
import inspect
import pkgutil
import re
from collections import defaultdict
from dataclasses import dataclass

import pytest

import openbench
from openbench import paths
from openbench.backbones.base import Backbone
from openbench.config.build import build, target_of
from openbench.core.method import Method
from openbench.data.sources.base import Source
from openbench.digest import digest
from openbench.errors import ConfigError
from openbench.methods.gradients import GODIN
from openbench.methods.knn import KNN
from openbench.public import modules_defining, name_of, public, public_name
from openbench.training.augment.augmentations import Augmentation, JensenShannon, Mixing
from openbench.training.augment.reading import Reading
from openbench.training.base import TrainingMethod

KINDS = (Method, TrainingMethod, Augmentation, Mixing, JensenShannon, Reading, Source, Backbone)


def modules():
    names = [info.name for info in pkgutil.walk_packages(openbench.__path__, "openbench.")]
    return [importlib.import_module(name) for name in names if not name.endswith("__main__")]


def made(code) -> type | None:
    return code if inspect.isclass(code) else inspect.signature(code, eval_str=True).return_annotation


@pytest.fixture(scope="module")
def shipped() -> dict[type, dict[str, set[str]]]:
    """{kind: {public name: paths}} of every class of a kind, and of every function that configs name."""
    found: dict[type, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in modules():
        for name, code in vars(module).items():
            if inspect.isclass(code) and code.__module__ == module.__name__:
                for kind in KINDS:
                    if issubclass(code, kind):
                        found[kind][name].add(f"{module.__name__}.{name}")
    for file in paths.config_dir().rglob("*.yaml"):
        for target in re.findall(r"\b_target_: *([\w.]+)", file.read_text()):
            code = target_of({"_target_": target})
            kind = next((kind for kind in KINDS if issubclass(made(code), kind)), made(code))
            found[kind][public_name(target)].add(f"{code.__module__}.{code.__qualname__}")
    return found


def test_public_names_are_unique_within_their_kind(shipped):
    assert all(shipped[kind] for kind in KINDS)
    assert {name: at for kind in shipped.values() for name, at in kind.items() if len(at) > 1} == {}


def test_ours_go_by_the_last_part_and_others_by_the_whole_path():
    assert public_name("openbench.methods.knn.KNN") == "KNN"
    assert public_name("openbench_plus.knn.KNN") == "openbench_plus.knn.KNN"
    assert name_of(KNN) == "KNN"
    node = {"_target_": "openbench.a.B", "of": [{"_target_": "c.D", "x": 1}], "name": "openbench.a.B"}
    assert public(node) == {"_target_": "B", "of": [{"_target_": "c.D", "x": 1}], "name": "openbench.a.B"}
    assert node["_target_"] == "openbench.a.B"


def test_a_class_that_moved_to_another_module_has_the_same_names():
    moved = type("KNN", (KNN,), {"__module__": "openbench.methods.neighbours.exact"})
    assert name_of(moved) == name_of(KNN) == public_name("openbench.elsewhere.KNN")
    assert digest(dataclass(moved)(k=3)) == digest(KNN(k=3))


def test_a_public_name_can_be_typed_and_its_kind_tells_namesakes_apart():
    assert build({"_target_": "KNN", "k": 3}, kind=Method) == KNN(3)
    assert len(modules_defining("GODIN")) == 2
    assert target_of({"_target_": "GODIN"}, kinds=(Method,)) is GODIN
    assert issubclass(target_of({"_target_": "GODIN"}, kinds=(TrainingMethod,)), TrainingMethod)


@pytest.mark.parametrize("name", ["KMN", "Popen", "TrainingMethod"])
def test_a_name_that_nothing_fitting_of_ours_has_is_refused(name):
    with pytest.raises(ConfigError, match=f"method: `_target_: {name}` is not the name of anything that fits here"):
        build({"_target_": name}, "method", Method)
