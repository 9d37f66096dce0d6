"""Splits and a benchmark of a few images, and a method with an angle."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from openbench.core.benchmark import Benchmark, Split
from openbench.core.method import Method
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request, Role

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


@dataclass
class Tilt(Method):
    """Projects logits on an angle; undefined beyond 360 degrees."""

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "test"
    angle: float = 0.0

    def __post_init__(self):
        self.require(self.angle <= 360, "angle", "at most 360")

    def score(self, x):
        a = torch.tensor(np.deg2rad(self.angle))
        return (x.logits @ torch.stack([a.cos(), a.sin()]).to(x.logits.dtype)).float()
