"""What a method reads of one batch, and from how many passes."""

from dataclasses import dataclass, field

import torch

from openbench.backbones.base import Outputs
from openbench.core.method import Method
from openbench.core.request import Field, Request, Texts
from openbench.detect._images import scored

from .tiny import PREPROCESS, images


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

    requests: list = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    name, num_classes, passes, preprocess = "stub", 3, 0, PREPROCESS

    def outputs(self, batch, request):
        self.requests.append(request)
        n = len(batch)
        patches = torch.full((n, 2, 4), 0.5).half() if Field.PATCHES in request.fields else None
        return Outputs(torch.zeros(n, 3), torch.zeros(n, 4), {}, patches)


def test_patches_and_logits_come_from_one_pass():
    stub = Stub()
    found = scored(Patchwork(), stub, images(5, 0)[0])
    assert found.scores.tolist() == [0.5] * 5
    assert found.logits.shape == (5, 3)
    assert len(stub.requests) == 1
