"""Released weights beside a training: what is refused, and that what the message says works."""

import re
from types import SimpleNamespace

import pytest

from openbench.compose.config import compose, scientific
from openbench.config.build import build
from openbench.core.preprocess import Preprocess
from openbench.engine.compatibility import check_training_counts
from openbench.errors import NotApplicableError

CLASSES = tuple("abcdefghij")
BENCHMARK = SimpleNamespace(classes=CLASSES, name="cifar10", preprocess=Preprocess(32, 32))
RELEASED = SimpleNamespace(name="resnet20_cifar10", num_classes=10, classifies=True, trained=True)


def config(**chosen: str) -> dict:
    names = {"backbone": "resnet20_cifar10", "training": "cross_entropy", "method": "msp", **chosen}
    words = [f"{'+' * (group == 'augment')}{group}={name}" for group, name in names.items()]
    return scientific(compose("run", ["+benchmark=openset_digits", *words]), names)


def refused(training: str, found=RELEASED, **chosen: str) -> str:
    with pytest.raises(NotApplicableError) as caught:
        check_training_counts(found, BENCHMARK, config(training=training, **chosen), training)
    return str(caught.value)


def test_plain_cross_entropy_is_what_released_weights_stand_for():
    check_training_counts(RELEASED, BENCHMARK, config(), "cross_entropy")


def test_a_training_or_augmentation_is_told_to_train_or_to_fine_tune():
    message = refused("logitnorm")
    assert message.startswith("training=logitnorm would be ignored: backbone 'resnet20_cifar10' comes with released")
    assert message.index("train from scratch") < message.index("backbone@backbone.start=resnet20_cifar10;")
    assert refused("cross_entropy", augment="pixmix").startswith("+augment=pixmix would be ignored")
    assert refused("mos", augment="cutmix").startswith("training=mos +augment=cutmix would be ignored")
    thousand = SimpleNamespace(name="r", num_classes=1000, classifies=True)
    assert ["backbone.head=new" in refused("ish", found) for found in (thousand, RELEASED)] == [True, False]
    rows = SimpleNamespace(name="identity", num_classes=1, classifies=False)
    assert "fine-tune" not in refused("ish", rows)


def test_what_the_message_says_is_a_backbone_that_waits_for_training(monkeypatch):
    monkeypatch.setattr("openbench.backbones.cifar.find_weights", lambda name: name)
    monkeypatch.setattr(
        "openbench.backbones.network.NetworkBackbone.load",
        lambda self, path, sha256=None: self.load_state(self.module().state_dict(), "own"),
    )
    (words,) = re.findall(r"backbone=finetuned \S+", refused("ish"))
    cfg = compose("run", ["+benchmark=openset_digits", *words.rstrip(";").split()])
    node = scientific(cfg, {})["backbone"]
    made = build(node, "backbone", num_classes=10, preprocess=BENCHMARK.preprocess, classes=CLASSES)
    assert not made.trained
