"""A batch that does not fit into memory is halved: the rows of the smaller batch, said, and nothing counted twice."""

from pathlib import Path

import numpy as np
import pytest
import torch

from openbench.backbones.base import Backbone, Outputs
from openbench.backbones.heads.headed import Headed
from openbench.core.features import Head
from openbench.core.request import Field, Perturb, Request
from openbench.features.store import FeatureStore

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

COUNT = 37
WANTED = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))
# As CUDA and the CPU's allocator say it, and as Python does.
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    MemoryError(),
]


def with_room_for(most: int, error: Exception, backbone: Backbone | None = None) -> tuple[Backbone, list[int]]:
    """A network that raises for more images than `most`, and how many it was given each time."""
    backbone, given = backbone or toy_backbone(), list[int]()
    outputs = backbone.outputs

    def short(images: torch.Tensor, request: Request) -> Outputs:
        given.append(len(images))
        found = outputs(images, request)
        if len(images) > most:
            raise error
        return found

    backbone.outputs = short  # type: ignore[method-assign]
    return backbone, given


def logits(root: Path, backbone: Backbone, batch_size: int, request: Request = WANTED) -> bytes:
    store = FeatureStore(root, batch_size=batch_size, progress=False)
    return np.asarray(store.get(backbone, toy_split(COUNT), request).logits).tobytes()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_batch_that_is_too_large_is_halved_until_it_fits(tmp_path: Path, error: Exception) -> None:
    backbone, given = with_room_for(5, error)
    with logged() as said:
        found = logits(tmp_path / "short", backbone, 16)
    assert given == [16, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1]  # found once, and held on to
    assert backbone.passes == COUNT
    assert found == logits(tmp_path / "small", toy_backbone(), 4)
    assert [line.split(", so ")[1].split(" — ")[0] for line in said] == [
        "it continues with 8 at a time",
        "it continues with 4 at a time",
    ]


STEPPED = Request(fields=frozenset({Field.LOGITS}), perturb=Perturb(temperature=10.0, epsilon=0.01))


def headed() -> Headed:
    head = Head(torch.eye(3, 64), torch.zeros(3))
    return Headed(toy_backbone(), "linear_probe", head, classes=3, fitted_on="toy")


@pytest.mark.parametrize("make", [toy_backbone, headed])
def test_input_steps_and_fitted_heads_count_what_a_smaller_batch_counts(make, tmp_path: Path) -> None:
    (short, given), small = with_room_for(5, ERRORS[0], make()), make()
    assert logits(tmp_path / "short", short, 16, STEPPED) == logits(tmp_path / "small", small, 4, STEPPED)
    assert given[:3] == [16, 8, 4]
    assert short.passes == small.passes == 2 * COUNT


def test_a_single_image_that_does_not_fit_is_the_error_it_is(tmp_path: Path) -> None:
    backbone, given = with_room_for(0, ERRORS[0])
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        logits(tmp_path, backbone, 16)
    assert given == [16, 8, 4, 2, 1]
