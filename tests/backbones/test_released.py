"""Released weights on real pictures: the accuracies that were published."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

import openbench
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.core.benchmark import Split
from openbench.core.request import Request, Role
from openbench.data.loading import batches
from openbench.data.sources.archives import load_pickle
from openbench.data.sources.base import ArrayItems
from openbench.paths import config_dir

MSP_OF_RESNET20 = "e57cb01b20ece832"
PUBLISHED = {"resnet20": 0.9173, "resnet32": 0.9263, "resnet44": 0.9310, "resnet56": 0.9339}


def released(model: str) -> NetworkBackbone:
    node = OmegaConf.to_container(OmegaConf.load(config_dir() / f"backbone/{model}_cifar10.yaml"))
    return build(node, "backbone")  # type: ignore[arg-type,no-any-return]


def pictures(folder: Path, count: int) -> Split:
    """The first `count` official CIFAR-10 test pictures."""
    path = folder / "cifar-10-batches-py/test_batch"
    if not path.is_file():
        pytest.skip(f"CIFAR-10's test pictures: {path.name} is not in OPENBENCH_DATA")
    batch = load_pickle(path)
    pixels = np.ascontiguousarray(batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))[:count]
    labels = np.array(batch["labels"][:count], dtype=np.int64)
    items = ArrayItems(pixels, np.arange(count))
    return Split("cifar10", Role.ID_TEST, items, labels, [str(i) for i in range(count)], (), "unused", count)


def logits(model: str, split: Split) -> Tensor:
    backbone = released(model)
    # The maps of 50 pictures stay in a processor's cache: a quarter less time than 250 at a time.
    return torch.cat([backbone.outputs(x, Request()).logits for x in batches(split, backbone.preprocess, 50)])


# All 10,000 pictures take the four networks two minutes of a processor.
FIRST = int(os.environ.get("OPENBENCH_TEST_PICTURES", "100"))


@pytest.mark.parametrize("model", ["resnet32", "resnet44", "resnet56"])
def test_accuracy_is_the_published_one(model: str, real_data: Path) -> None:
    """Wrong weights cost far more than four standard errors; a wrong channel order or padding changes scores below."""
    split, published = pictures(real_data, FIRST), PUBLISHED[model]
    assert released(model).preprocess == released("resnet20").preprocess
    error = 1e-9 if FIRST == 10_000 else 4 * np.sqrt(published * (1 - published) / FIRST)
    found = logits(model, split).argmax(1).numpy() == split.labels
    assert found.mean() == pytest.approx(published, abs=error)


def test_committed_scores_have_the_published_accuracy_on_all_pictures_and_are_those_of_the_first(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = pictures(real_data, FIRST)
    found = logits("resnet20", split).softmax(1).max(1)
    monkeypatch.setenv("OPENBENCH_RESULTS", str(Path(__file__).parents[2] / "results"))
    images = openbench.load(MSP_OF_RESNET20).images()
    own = images[images.role.isin(["id_val", "id_test"])].sort_values(["label", "image"])  # as the pictures of a class
    assert len(own) == 10_000
    assert own.correct.mean() == pytest.approx(PUBLISHED["resnet20"], abs=1e-9)
    of_class = dict(iter(own.groupby("label")))
    place = [int((split.labels[:i] == label).sum()) for i, label in enumerate(split.labels)]
    rows = [of_class[label].iloc[k] for label, k in zip(split.labels, place, strict=True)]
    assert [row.prediction for row in rows] == found.indices.tolist()
    np.testing.assert_allclose([-row.score for row in rows], found.values, atol=1e-4)
