"""Released weights on real pictures: the accuracies that were published."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from omegaconf import OmegaConf

from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.core.benchmark import Split
from openbench.core.request import Request, Role
from openbench.data.loading import batches
from openbench.data.sources.archives import load_pickle
from openbench.data.sources.items import ArrayItems
from openbench.paths import config_dir

PUBLISHED = {"resnet20": 0.9173, "resnet32": 0.9263, "resnet44": 0.9310, "resnet56": 0.9339}


def released(model: str) -> NetworkBackbone:
    node = OmegaConf.to_container(OmegaConf.load(config_dir() / f"backbone/{model}_cifar10.yaml"))
    return build(node, "backbone")  # type: ignore[arg-type,no-any-return]


def correct(model: str, folder: Path, count: int) -> NDArray[np.bool_]:
    """Whether each of the first `count` official CIFAR-10 test pictures is classified right."""
    path = folder / "cifar-10-batches-py/test_batch"
    if not path.is_file():
        pytest.skip(f"CIFAR-10's test pictures: {path.name} is not in OPENBENCH_DATA")
    batch = load_pickle(path)
    pixels = np.ascontiguousarray(batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))[:count]
    labels = np.array(batch["labels"][:count], dtype=np.int64)
    items = ArrayItems(pixels, np.arange(count))
    split = Split("cifar10", Role.ID_TEST, items, labels, [str(i) for i in range(count)], (), "unused", count)
    backbone = released(model)
    # The maps of 50 pictures stay in a processor's cache: a quarter less time than 250 at a time.
    logits = [backbone.outputs(x, Request()).logits for x in batches(split, backbone.preprocess, 50)]
    return np.concatenate([z.argmax(1).numpy() for z in logits]) == labels


# All 10,000 pictures take the four networks two minutes of a processor. The smallest one, which has the code, the file
# format and the preprocessing of the others, is held to its published accuracy on all of them; the others on the first.
PICTURES = {"resnet20": 10_000}
FIRST = int(os.environ.get("OPENBENCH_TEST_PICTURES", "500"))


@pytest.mark.parametrize("model", PUBLISHED)
def test_accuracy_is_the_published_one(model: str, real_data: Path) -> None:
    """A wrong channel order, normalisation or padding costs far more than four standard errors."""
    count, published = PICTURES.get(model, FIRST), PUBLISHED[model]
    error = 1e-9 if count == 10_000 else 4 * np.sqrt(published * (1 - published) / count)
    assert correct(model, real_data, count).mean() == pytest.approx(published, abs=error)
