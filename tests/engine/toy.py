"""Splits and a benchmark of a few images."""

import numpy as np

from openbench.core.benchmark import Benchmark, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role

CLASSES = ("cat", "dog")


def split(name: str, role: Role, n: int = 6) -> Split:
    items = list(np.random.default_rng(len(name)).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8))
    labels = np.arange(n) % 2 if role.is_id else np.full(n, -1)
    classes = CLASSES if role.is_id else (f"class of {name}",)
    return Split(name, role, items, labels, [f"{name}{i}" for i in range(n)], classes, f"{role}{name}", n)


def toy(**changes) -> Benchmark:
    """A benchmark with ID sets, and whatever else is given."""
    parts = {role: split("a", Role(role)) for role in ("id_train", "id_val", "id_test")}
    return Benchmark(
        **{"name": "toy", "classes": CLASSES, "near": {}, "far": {}, "preprocess": Preprocess(8, 8), **parts, **changes}
    )
