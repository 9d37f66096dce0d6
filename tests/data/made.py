"""Splits and benchmarks made of given pixels."""

import numpy as np

from openbench.core.benchmark import Benchmark, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.sources.base import ArrayItems

CLASSES = ("class 0", "class 1", "class 2")


def split_of(items, role=Role.ID_TRAIN, name="set", classes=CLASSES, **changes):
    """A split of these items, or of an array of images, labels in turn."""
    items = ArrayItems(items, np.arange(len(items))) if isinstance(items, np.ndarray) else items
    count = len(items)
    labels = np.arange(count) % len(classes) if role.is_id else np.full(count, -1)
    keys = [f"{name}/{i}.png" for i in range(count)]
    whole = {"classes": classes if role.is_id else (), "digest": name, "expected": count, **changes}
    return Split(name, role, items, labels, keys, **whole)


def benchmark_of(**items):
    """A benchmark with these items in `train`, `val`, `test`, `ood_val`, `near`, `far`, and plain images elsewhere."""

    def made(name, role):
        return split_of(items.get(name, np.zeros((6, 64, 64, 3), np.uint8)), role, name)

    return Benchmark(
        name="made",
        classes=CLASSES,
        **{f"id_{part}": made(part, Role(f"id_{part}")) for part in ("train", "val", "test")},
        near={"near": made("near", Role.NEAR)},
        far={"far": made("far", Role.FAR)},
        ood_val=made("ood_val", Role.OOD_VAL) if "ood_val" in items else None,
        preprocess=Preprocess(resize=64, crop=64),
    )
