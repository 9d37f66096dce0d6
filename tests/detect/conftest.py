"""A saved detector."""

from pathlib import Path

import pytest

from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.detect.detector import Detector

from .tiny import images


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> tuple[Detector, Path]:
    """A detector with a network of openbench's own and random weights that count as trained, and where it was saved."""
    node = {**shipped("backbone", "resnet20_cifar10"), "weights": None, "sha256": None, "num_classes": 3}
    node["preprocess"] = {"_target_": "Preprocess", "resize": 8, "crop": 8}
    backbone = build(node, "backbone")
    backbone.load_state(backbone.network.state_dict(), "memory")
    made = Detector(backbone, "knn", classes=("=1+1", "green", "blue"))  # a spreadsheet would compute the first
    made.backbone, made.node = backbone, node | {"_name_": "resnet20_cifar10"}
    made.fit(images(120, 0)).calibrate(images(99, 1), alpha=0.1)
    path = tmp_path_factory.mktemp("saved") / "detector"
    made.save(path)
    return made, path
