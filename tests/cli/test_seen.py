"""What the leaderboard says of the classes that a released network has met."""

import pytest

from openbench.cli.seen import seen
from openbench.data.manifests.manifest import load_classes, load_manifest


@pytest.mark.parametrize(
    ("benchmark", "backbone", "said"),
    [
        ("cifar10_32px", "resnet20_cifar10", "none"),
        ("cifar10_32px", "clip_vitb16", "not known"),
        ("cifar10_32px", "resnet8_digits", ""),  # has no released weights
        ("no_such_benchmark", "resnet20_cifar10", ""),
    ],
)
def test_the_classes_of_near_and_far_sets_are_looked_up_in_the_labels(benchmark, backbone, said):
    assert seen(benchmark, backbone) == said


def test_classes_that_imagenet_has_too_are_counted():
    lists = ("cifar100/near_cifar10", "tiny_imagenet/near_cifar10", "mnist/test", "notmnist/test", "texture/all")
    ood = {plain(name) for manifest in lists for name in load_manifest(manifest).class_names()}
    ood -= {plain(name) for name in load_manifest("texture/all").class_names()[10:]}  # it has the first ten textures
    imagenet = {plain(name) for name in load_classes("imagenet1k/classes")}
    assert seen("cifar10_32px", "torchvision_resnet50") == f"{len(ood & imagenet)} of {len(ood)}"


@pytest.mark.parametrize(("backbone", "said"), [("torchvision_resnet50", "1 of 2"), ("resnet20_cifar10", "none")])
def test_sets_that_name_no_classes_are_told(monkeypatch, backbone, said):
    listed = ((load_classes("imagenet1k/classes")[0],), (), ("no such thing",))
    monkeypatch.setattr("openbench.cli.seen._ood_classes", lambda benchmark: listed)
    assert seen.__wrapped__("toy", backbone) == f"{said} (1 of 3 sets name no classes)"


def plain(name):
    return "_".join(name.lower().replace("-", " ").replace("'", " ").replace("_", " ").split())
