"""Splits and benchmarks made of given pixels."""

import numpy as np

from openbench.core.benchmark import Benchmark, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.sources.items import ArrayItems

CLASSES = ("class 0", "class 1", "class 2")


def split_of(items, role=Role.ID_TRAIN, name="set", classes=CLASSES, **changes):
    """A split of these items, or of an array of images, labels in turn."""
    items = ArrayItems(items, np.arange(len(items))) if isinstance(items, np.ndarray) else items
    count = len(items)
    labels = np.arange(count) % len(classes) if role.is_id else np.full(count, -1)
    keys = [f"{name}/{i}.png" for i in range(count)]
    whole = {"classes": classes if role.is_id else (), "digest": name, "expected": count, **changes}
    return Split(name, role, items, labels, keys, **whole)


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
