"""What names results, weights and cached columns: an edit of others' code makes others, a move of ours does not."""

import importlib
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from openbench.backbones.base import Backbone
from openbench.compose.config import compose, scientific
from openbench.config.build import build
from openbench.data.build import build_benchmark
from openbench.engine.prepare import build_method
from openbench.engine.provenance import TrainingInfo
from openbench.engine.run import RunSpec
from openbench.features.store import FeatureStore
from openbench.training.base import TrainingJob
from openbench.training.loop.weights import build_training

CODE = Path(__file__).with_name("own_code.py")
METHOD, TRAINING, FLIP, NETWORK, DIGITS = (
    {"_target_": f"own_of_test.{name}"} for name in ("Method", "Training", "Flip", "network", "Digits")
)
RUN, JOB, COLUMNS, IMAGES = "run", "weights", "columns", "images"
# What is of one's own → the nodes of it, and what an edit must make another.
OWN = {
    "method": ({"method": METHOD}, {RUN}),
    "part of a method": ({"method": {"_target_": "DoubleScore", "risk": METHOD, "ood": {"_target_": "Energy"}}}, {RUN}),
    "training": ({"training": TRAINING}, {RUN, JOB}),
    "augmentation": ({"training": {"recipe": {"augment": [FLIP]}}}, {RUN, JOB}),
    "backbone": ({"backbone": NETWORK}, {RUN, JOB, COLUMNS}),
    "data source": ({"benchmark": {"near": {"nine": {"sources": {"installed": DIGITS}}}}}, {RUN, IMAGES}),
}
LATER = "def later():\n    import helper_of_test\n    return helper_of_test.SIGN\n"


@pytest.fixture(scope="module")
def digits():
    others = ("csid", "ood_train", "ood_val", "near.eight", "far.patches", "far.noise")  # that nothing here reads
    words = ["+benchmark=digits", "backbone=resnet8_digits", *(f"~benchmark.{name}" for name in others)]
    return scientific(compose("run", words), {"method": "msp"})


def merged(node, changes):
    if not isinstance(node, dict) or ("_target_" in changes and "name" not in node and "recipe" not in node):
        return changes
    return {**node, **{key: merged(node.get(key), v) if isinstance(v, dict) else v for key, v in changes.items()}}


def names(config) -> dict[str, str]:
    """What names everything that a config makes."""
    benchmark = build_benchmark(config["benchmark"])
    training = build_training(config["training"])
    backbone = build(
        config["backbone"], "backbone", Backbone, num_classes=len(benchmark.classes), preprocess=benchmark.preprocess
    )
    job = TrainingJob.of(deepcopy(backbone), benchmark, training, 0)
    backbone.load_state(backbone.module().state_dict(), "random")
    method = build_method(config["method"]).method
    spec = RunSpec(
        benchmark, backbone, method, "own", config=config, training_info=TrainingInfo("own", method=training)
    )
    return {
        RUN: spec.run_id,
        JOB: job.digest,
        COLUMNS: str(FeatureStore(Path("x"))._folder(backbone, benchmark.id_test)),
        IMAGES: benchmark.near["nine"].digest,
    }


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Forgets the modules of this test, as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)
    # Whoever works on openbench has changes that are not committed; they are another test's matter.
    monkeypatch.setattr("openbench.source._changed", dict)

    def forget():
        for name in ("own_of_test", "helper_of_test"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()

    yield forget
    forget()


@pytest.mark.parametrize("place", ["own_of_test.py", "helper_of_test.py"])
@pytest.mark.parametrize("kind", OWN)
def test_a_flipped_sign_in_code_of_ones_own_gives_all_that_it_makes_other_names(digits, tmp_path, fresh, kind, place):
    changes, touched = OWN[kind]
    (tmp_path / "own_of_test.py").write_text(CODE.read_text() + LATER)
    (tmp_path / "helper_of_test.py").write_text("SIGN = 1\n")
    config, edited = merged(digits, changes), tmp_path / place
    fresh()  # another test's modules of these names
    before = names(config)
    fresh()
    assert names(config) == before, "the same sources must give the same names in another process"
    edited.write_text(edited.read_text().replace("SIGN = 1", "SIGN = -1"))
    fresh()
    after = names(config)
    assert {what for what in before if before[what] != after[what]} == touched


@pytest.mark.parametrize(
    ("target", "at"),
    [
        ("openbench.methods.msp.MSP", ("method",)),
        ("openbench.training.methods.cross_entropy.CrossEntropy", ("training",)),
        ("openbench.backbones.cifar.resnet", ("backbone",)),
        ("openbench.data.sources.embedded.SklearnDigits", ("benchmark", "near", "nine", "sources", "installed")),
    ],
)
def test_a_class_of_ours_in_another_module_changes_no_name(digits, monkeypatch, fresh, target, at):
    """What moving a file does: the module is another, in the config and in the class itself."""
    config = deepcopy(digits)
    config["training"]["recipe"]["augment"] = [
        {"_target_": "openbench.training.augment.augmentations.RandomCrop", "padding": 1}
    ]
    before = names(config)
    module, _, name = target.rpartition(".")
    code, moved = getattr(importlib.import_module(module), name), type(sys)("openbench.elsewhere.moved")
    setattr(moved, name, code)
    monkeypatch.setitem(sys.modules, moved.__name__, moved)
    monkeypatch.setattr(code, "__module__", moved.__name__)
    node = config
    for key in at:
        node = node[key]
    assert node["_target_"] == target
    node["_target_"] = f"{moved.__name__}.{name}"
    assert names(config) == before


def test_a_raised_version_of_an_augmentation_names_other_weights(digits, monkeypatch, fresh):
    config = deepcopy(digits)
    config["training"]["recipe"]["augment"] = [{"_target_": "RandomCrop", "padding": 1}]
    before = names(config)
    monkeypatch.setattr("openbench.training.augment.augmentations.RandomCrop.version", 2, raising=False)
    assert {what for what, name in names(config).items() if name != before[what]} == {JOB}
    monkeypatch.setattr("openbench.data.sources.embedded.SklearnDigits.version", 2, raising=False)
    assert names(config)[IMAGES] != before[IMAGES]
