"""A small network and small splits, the same in every process that imports this module."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from openbench.backbones.cifar import resnet
from openbench.backbones.network import NetworkBackbone
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.digest import digest

SIDE = 8
CLASSES = ("a", "b", "c")


@dataclass
class Pixels:
    """Random images, made on demand."""

    count: int
    seed: int = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = np.random.default_rng((self.seed, index))
        return generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def toy_split(count: int = 37, seed: int = 0, role: Role = Role.ID_TEST) -> Split:
    """A split of `count` random images."""
    labels = np.arange(count, dtype=np.int64) % len(CLASSES)
    keys = [f"toy/{i:05d}.png" for i in range(count)]
    return Split("toy", role, Pixels(count, seed), labels, keys, CLASSES, digest(("toy", count, seed)), count)


def toy_backbone(seed: int = 0) -> NetworkBackbone:
    """A ResNet-8 with random weights that count as loaded."""
    backbone = resnet("toy", "resnet8", num_classes=len(CLASSES), preprocess=Preprocess(SIDE, SIDE)).initialise(seed)
    return backbone.load_state(backbone.module().state_dict(), "random")
