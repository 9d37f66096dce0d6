"""What a method reads of one batch, and from how many passes."""

from dataclasses import dataclass, field

import pytest
import torch

from openbench.backbones.base import Outputs
from openbench.core.method import Method
from openbench.core.request import Field, Request, Texts
from openbench.detect.features import scored
from openbench.errors import MethodError


@dataclass
class Patchwork(Method):
    """Reads patches, and text when it is fitted."""

    needs = Request(fields=frozenset({Field.PATCHES, Field.TEXT}), texts=(Texts("classes"),), head=True)
    reference = "none"

    def score(self, x):
        return x.patches.float().mean(dim=(1, 2))


@dataclass
class Stub:
    """A backbone that gives patches where they are asked for."""

    asked: list = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def outputs(self, images, request):
        self.asked.append(request)
        n = len(images)
        patches = torch.full((n, 2, 4), 0.5).half() if Field.PATCHES in request.fields else None
        return Outputs(torch.zeros(n, 3), torch.zeros(n, 4), {}, patches)


def test_patches_and_logits_come_from_one_pass():
    stub = Stub()
    found = scored(Patchwork(), stub, torch.zeros(5, 3, 8, 8))
    assert found.scores.tolist() == [0.5] * 5
    assert found.logits.shape == (5, 3)
    assert len(stub.asked) == 1


@dataclass
class Told(Method):
    """Scores that are given."""

    needs = Request()
    reference = "none"
    scores: tuple = ()

    def score(self, x):
        return torch.tensor(self.scores)


def test_infinite_scores_are_scores_and_nan_is_refused():
    inf = float("inf")
    assert scored(Told((inf, -inf, 3e38)), Stub(), torch.zeros(3, 3, 8, 8)).scores.tolist()[:2] == [inf, -inf]
    with pytest.raises(MethodError, match="1 NaN for 2 images"):
        scored(Told((inf, float("nan"))), Stub(), torch.zeros(2, 3, 8, 8))
