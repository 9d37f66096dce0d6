"""Small trainings whose result is known to depend on everything that must be restored: order, augmentation, dropout."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.network import NetworkBackbone
from openbench.core.benchmark import Benchmark, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request, Role
from openbench.core.runtime import Runtime
from openbench.data.sources.base import ArrayItems
from openbench.training._images import ImageSet
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop
from openbench.training.base import Batch, StepInfo, TrainingData, TrainingJob, TrainingMethod, features_and_logits
from openbench.training.loop import _loop as loop
from openbench.training.loop.weights import Checkpoint, obtain
from openbench.training.recipe import Recipe

from ..logged import logged  # noqa: TID252 — the tests are no package

SIDE, CLASSES, FEATURES = 8, 3, 12
PREPROCESS = Preprocess(SIDE, SIDE, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
QUIET = Runtime(device="cpu", progress=False)
RECIPE = Recipe(epochs=4, batch_size=16, lr=0.05, augment=(RandomCrop(1), HorizontalFlip()))


STEPS = [0]  # that the training of `main` has begun


def pause() -> None:
    """Make steps slow, and stop in one to be killed there; neither is a hyper-parameter, so no digest changes."""
    time.sleep(float(os.environ.get("TOY_PAUSE", "0")))
    STEPS[0] += 1
    if STEPS[0] == int(os.environ.get("TOY_STOP", "0")):
        print("stopped", flush=True)
        time.sleep(600)


class ToyNet(nn.Module):
    """Convolution, batch norm, dropout, linear: buffers and global randomness included."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, FEATURES, 3, padding=1)
        self.bn = nn.BatchNorm2d(FEATURES)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(functional.relu(self.bn(self.conv(x))).mean(dim=(2, 3))))


def backbone(preprocess: Preprocess = PREPROCESS, architecture: str = "toy", dropout: float = 0.2) -> NetworkBackbone:
    return NetworkBackbone(
        "toy", architecture, partial(ToyNet, dropout), lambda _: Anatomy("fc"), preprocess=preprocess
    )


def split(role: Role, n: int, seed: int = 0, contrast: int = 100) -> Split:
    """Noise images whose class makes one colour channel brighter; outliers are bright in all."""
    generator = np.random.default_rng([seed, n, list(Role).index(role)])
    labels = generator.integers(0, CLASSES, n)
    pixels = generator.integers(0, 130, (n, SIDE, SIDE, 3))
    if role.is_id:
        pixels += contrast * (labels[:, None, None, None] == np.arange(3))
    return Split(
        name="toy",
        role=role,
        items=ArrayItems(pixels.astype(np.uint8), np.arange(n)),
        labels=labels if role.is_id else np.full(n, -1),
        keys=[f"toy/{i}" for i in range(n)],
        classes=("red", "green", "blue") if role.is_id else (),
        digest=f"{role}-{n}-{seed}-{contrast}",
        expected=n,
    )


def benchmark(**changes: object) -> Benchmark:
    values = {
        "name": "toys",
        "classes": ("red", "green", "blue"),
        "id_train": split(Role.ID_TRAIN, 70),
        "id_val": split(Role.ID_VAL, 40),
        "id_test": split(Role.ID_TEST, 40),
        "near": {},
        "far": {"noise": split(Role.FAR, 10)},
        "preprocess": PREPROCESS,
        "ood_train": split(Role.OOD_TRAIN, 24),
    }
    return Benchmark(**(values | changes))


@dataclass(frozen=True)
class ToyEntropy(TrainingMethod):
    """Cross-entropy of the logits."""

    recipe: Recipe = field(default_factory=lambda: RECIPE)
    reference = "none"
    version = 1

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pause()
        return functional.cross_entropy(model(batch.images), batch.labels)


class WithPrototypes(nn.Module):
    """The network, a projection, and class prototypes that are averaged, not learnt."""

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.network = network
        self.projection = nn.Linear(feature_dim, 4)
        self.register_buffer("prototypes", torch.zeros(num_classes, 4))
        self.register_buffer("epochs_seen", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


@dataclass(frozen=True)
class ToyPrototypes(TrainingMethod):
    """Everything a method may want: extra head, buffers, outliers, own noise, groups, an epoch hook, its selection."""

    recipe: Recipe = field(default_factory=lambda: RECIPE)
    reference = "none"
    version = 1
    uses_outliers = True
    selection = "train_loss"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> nn.Module:
        return WithPrototypes(model, feature_dim, num_classes)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, object]]:
        return [
            {"params": list(model.network.parameters())},
            {"params": list(model.projection.parameters()), "lr_scale": 0.1, "weight_decay": 0.0},
        ]

    def on_epoch_start(self, model, info, data) -> None:
        model.epochs_seen += 1
        if info.epoch == 0:
            for images, labels, _ in data.train.clean(32):
                with torch.no_grad():
                    features, _ = features_and_logits(model.network, images)
                    model.prototypes.index_add_(0, labels, model.projection(features) / len(data.train))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pause()
        features, logits = features_and_logits(model.network, batch.images)
        noise = torch.randn(features.shape, generator=batch.info.generator)
        places = model.projection(features + 0.01 * noise)
        with torch.no_grad():
            for place, label in zip(places, batch.labels, strict=True):
                model.prototypes[label] = 0.9 * model.prototypes[label] + 0.1 * place
        pull = (places - model.prototypes[batch.labels]).square().mean()
        outlying = model(batch.outliers)
        flat = (outlying.logsumexp(1) - outlying.mean(1)).mean()
        return functional.cross_entropy(logits, batch.labels) + 0.1 * pull + 0.5 * flat


class KilledError(Exception):
    """Stands for a process that ends between two epochs."""


@contextmanager
def after_epochs(epochs: int, end: Callable[[], object]) -> Iterator[None]:
    """End what trains once some epochs are on disk; 0: never."""
    write, count = loop.write_whole, [0]

    def counted(path: Path, content: bytes) -> None:
        write(path, content)
        count[0] += path.name == "curve.csv"
        if count[0] == epochs and path.name == "curve.csv":
            end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "write_whole", counted)
        yield


def train_until_killed(
    made: TrainingJob, folder: Path, epochs: int, settings: Runtime = QUIET, start: Path | None = None
) -> None:
    """Train until some epochs are on disk, then end as a kill would: nothing is cleaned up."""

    def killed() -> None:
        raise KilledError

    with after_epochs(epochs, killed), pytest.raises(KilledError):
        loop.train(made, folder, settings, start)


def draws(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def info(epoch: int = 9, seed: int = 3) -> StepInfo:
    """The first step of one of ten epochs."""
    return StepInfo(epoch, 10, epoch * 5, 50, draws(seed))


def batch(labels: Tensor, epoch: int = 9, seed: int = 0) -> Batch:
    """Images of noise with labels."""
    images = torch.randn(len(labels), 3, SIDE, SIDE, generator=draws(seed))
    return Batch(images, labels, torch.arange(len(labels)), info(epoch))


def image_set(data: Split, preprocess: Preprocess = PREPROCESS, **changes: object) -> ImageSet:
    return ImageSet(data, preprocess, torch.device("cpu"), **changes)


def sets() -> TrainingData:
    """All training images and outliers of the toy benchmark."""
    return TrainingData(image_set(split(Role.ID_TRAIN, 70)), image_set(split(Role.OOD_TRAIN, 24)))


def model_of(method: TrainingMethod) -> nn.Module:
    """What a method trains: the toy network without dropout, prepared."""
    torch.manual_seed(1)
    return method.prepare(backbone(dropout=0).initialise(1).module(), FEATURES, CLASSES).train()


def array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().numpy()


def features(network: nn.Module, images: Tensor) -> NDArray[np.float64]:
    """Penultimate features, by the network's layers one after the other; batch statistics are those of `images`."""
    norm = network.bn
    with torch.no_grad():
        maps = functional.batch_norm(network.conv(images), None, None, norm.weight, norm.bias, training=True)
        return array(functional.relu(maps).mean(dim=(2, 3)))


def reading(layer: str) -> Request:
    """What a score reads that takes an output of what is evaluated."""
    return Request(fields=frozenset({Field.LOGITS, Field.FEATURES, Field.MAPS}), layers=(layer,), pool="mean")


def setting(root: Path, train: str = "auto") -> Any:
    """The part of a runtime that training reads, with the folder of checkpoints."""
    return SimpleNamespace(**asdict(QUIET) | {"checkpoints": root, "train": train})


NODE = {
    "_target_": "openbench.training.methods.cross_entropy.CrossEntropy",
    "_name_": "cross_entropy",
    "recipe": {"_target_": "openbench.training.recipe.Recipe", "epochs": 2, "batch_size": 16},
}
CONFIG = {"training": NODE, "seed": 5}


def trained(made: TrainingJob, root: Path) -> Checkpoint:
    """The checkpoint of a job."""
    return obtain(made, setting(root))


def job(method: TrainingMethod | None = None, seed: int = 0, **changes: object) -> TrainingJob:
    made = TrainingJob.of(backbone(), benchmark(), ToyEntropy() if method is None else method, seed)
    return replace(made, **changes)


METHODS = {"entropy": ToyEntropy, "prototypes": ToyPrototypes}


def main(method: str, root: str) -> None:
    """Get the checkpoint of a job in a process of its own, and say whether this process trained it."""
    torch.set_num_threads(1)
    STEPS[0] = 0

    with logged(lambda text: print("trains", flush=True) if "training for" in text else None):
        print(obtain(job(METHODS[method]()), setting(Path(root))).sha256)
