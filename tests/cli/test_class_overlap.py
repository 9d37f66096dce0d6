"""What the leaderboard says of the classes that a released network has met."""

import pytest

from openbench import paths
from openbench.cli.commands.leaderboard import class_overlap
from openbench.data.download import released_weights
from openbench.data.manifests import load_classes
from openbench.public import public
from openbench.storage.yaml_file import read_yaml


def node(shipped, **changes):
    """The node of a shipped backbone as records have it."""
    return public({**read_yaml(paths.config_dir() / "backbone" / f"{shipped}.yaml"), **changes})


@pytest.mark.parametrize(
    ("benchmark", "backbone", "said"),
    [
        ("cifar10_32px", node("resnet20_cifar10"), "none"),
        ("cifar10_32px", node("resnet20_cifar10", sha256="0" * 64), "not known"),
        ("cifar10_32px", node("resnet20_cifar10", weights="mine.pth", sha256=None), "not known"),
        ("cifar10_32px", node("torchvision_resnet50", weights="mine.pth"), "not known"),
        ("cifar10_32px", node("torchvision", weights="IMAGENET1K_V2"), node("torchvision_resnet50_v2")),
        ("cifar10_32px", node("torchvision_resnet18_finetuned"), node("torchvision_resnet18")),
        ("cifar10_32px", {"name": "resnet20_cifar10"}, "not known"),  # a module of one's own with this name
        ("no_such_benchmark", node("resnet20_cifar10"), ""),
    ],
)
def test_what_a_network_has_seen_goes_by_its_weights(benchmark, backbone, said):
    expected = said if isinstance(said, str) else class_overlap(benchmark, said)
    assert class_overlap(benchmark, backbone) == expected
    assert isinstance(said, str) or " of " in expected


def test_every_released_backbone_is_known_by_its_weights(monkeypatch):
    monkeypatch.setattr("openbench.cli.commands.leaderboard._ood_classes", lambda benchmark: (("tabby",),))
    for name, weights in released_weights().items():
        expected = weights.seen(["tabby"]).partition(":")[0]
        assert class_overlap(f"toy of {name}", node(name)) == expected, name


@pytest.mark.parametrize(("backbone", "said"), [("torchvision_resnet50", "1 of 2"), ("resnet20_cifar10", "none")])
def test_sets_that_name_no_classes_are_told(monkeypatch, backbone, said):
    listed = ((load_classes("imagenet1k/classes")[0],), (), ("no such thing",))
    monkeypatch.setattr("openbench.cli.commands.leaderboard._ood_classes", lambda benchmark: listed)
    assert class_overlap("toy", node(backbone)) == f"{said} (1 of 3 sets name no classes)"
