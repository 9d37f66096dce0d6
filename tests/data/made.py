"""Splits and benchmarks made of given pixels."""

import numpy as np

from openbench.core.benchmark import Benchmark, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.sources.items import ArrayItems

CLASSES = ("class 0", "class 1", "class 2")


def split_of(pixels, role=Role.ID_TRAIN, name="set"):
    """A split of these images, labels in turn."""
    count = len(pixels)
    labels = np.arange(count) % len(CLASSES) if role.is_id else np.full(count, -1)
    keys = [f"{name}/{i}.png" for i in range(count)]
    return Split(
        name, role, ArrayItems(pixels, np.arange(count)), labels, keys, CLASSES if role.is_id else (), name, count
    )


def plain(count=6):
    """Images without content."""
    return np.zeros((count, 64, 64, 3), np.uint8)


def benchmark_of(train=None, test=None, near=None, far=None):
    """A benchmark with these images in its splits, plain ones in the others."""

    def made(pixels, role, name):
        return split_of(plain() if pixels is None else pixels, role, name)

    return Benchmark(
        name="made",
        classes=CLASSES,
        id_train=made(train, Role.ID_TRAIN, "train"),
        id_val=made(None, Role.ID_VAL, "val"),
        id_test=made(test, Role.ID_TEST, "test"),
        near={"near": made(near, Role.NEAR, "near")},
        far={"far": made(far, Role.FAR, "far")},
        preprocess=Preprocess(resize=64, crop=64),
    )
