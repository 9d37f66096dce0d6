"""Which share of the time was the network's."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from openbench.core.benchmark import Image
from openbench.core.request import Field, Request
from openbench.features import extract as module
from openbench.features.columns import Column
from openbench.features.extract import PassTimer, extract

from .feature_toys import Pixels, toy_backbone, toy_split


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that pass; their sum is what the clock says."""
    seconds: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: sum(seconds)))
    return seconds


@dataclass
class Slow(Pixels):
    """Each image takes a second to decode."""

    passed: list[float] | None = None

    def __getitem__(self, index: int) -> Image:
        assert self.passed is not None
        self.passed.append(1.0)
        return super().__getitem__(index)


def test_decoding_passing_and_writing_are_counted_apart(passed: list[float]) -> None:
    spent, backbone = PassTimer(), toy_backbone()
    inner, split = backbone.outputs, toy_split()

    def slow(images: torch.Tensor, request: Request) -> object:
        passed.append(10.0)
        return inner(images, request)

    backbone.outputs = slow  # type: ignore[assignment, method-assign]
    split = replace(split, items=Slow(len(split), passed=passed))
    for _ in extract(backbone, split, (Column(Field.LOGITS),), 10, timer=spent):
        passed.append(100.0)  # by whoever takes the rows
    assert (spent.images, spent.network) == (37, 40)
    assert spent.describe(workers=2) == "of 477.0 s the network took 8%, waiting for images 8%, all else 84%"


def test_workers_are_recommended_where_images_are_waited_for(passed: list[float]) -> None:
    spent = PassTimer()
    with spent.on("images"):
        passed.append(3.0)
    with spent.on("network"):
        passed.append(7.0)
    told = "of 10.0 s the network took 70%, waiting for images 30%, all else 0%"
    assert spent.describe(workers=1) == told
    assert spent.describe(workers=0) == f"{told} — runtime.workers=4 decodes while the network runs"
