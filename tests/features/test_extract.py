"""One pass over a split: rows in order, nothing lost, no number that is not finite; a batch too large is halved."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from openbench.backbones.base import Backbone, Outputs
from openbench.backbones.heads import Headed
from openbench.core.features import Head
from openbench.core.request import Field, Perturb, Request
from openbench.errors import DataError
from openbench.features.columns import Column
from openbench.features.extract import BatchHalving, extract, select
from openbench.features.store import FeatureStore

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import Pixels, toy_backbone, toy_split

LOGITS, FEATURES = Column(Field.LOGITS), Column(Field.FEATURES)


def joined(column: Column, start: int = 0, batch_size: int = 7, workers: int = 0) -> NDArray[np.float32]:
    split = select(toy_split(), range(start, len(toy_split())))
    parts = extract(toy_backbone(), split, (column,), BatchHalving(batch_size, workers))
    return np.concatenate([rows[column.name] for rows in parts])


def test_rows_do_not_depend_on_batch_size_or_workers() -> None:
    whole = joined(LOGITS)
    np.testing.assert_allclose(joined(LOGITS, batch_size=37), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(joined(LOGITS, workers=2), whole)


def test_the_rest_of_a_split_is_its_later_rows() -> None:
    np.testing.assert_allclose(joined(LOGITS, start=11), joined(LOGITS)[11:], rtol=1e-5, atol=1e-6)
    rest = select(toy_split(), range(11, len(toy_split())))
    assert len(rest) == 26
    assert rest.keys[0] == "toy/00011.png"
    assert rest.labels[0] == 11 % 3
    with pytest.raises(IndexError):
        _ = rest.items[26]


@dataclass
class Marked(Pixels):
    """Image 20 is white, the others black."""

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return np.full((8, 8, 3), 255 if index == 20 else 0, dtype=np.uint8)


@pytest.mark.parametrize("start", [0, 9])
def test_an_output_that_is_not_finite_names_the_split_and_the_first_image(start: int) -> None:
    backbone = toy_backbone()
    inner = backbone.outputs

    def spoilt(images: torch.Tensor, request: Request) -> object:
        outputs = inner(images, request)
        outputs.features[images.mean((1, 2, 3)) > 0, 3] = float("inf")
        return outputs

    backbone.outputs = spoilt  # type: ignore[method-assign,assignment]
    split = select(replace(toy_split(), items=Marked(37)), range(start, 37))
    with pytest.raises(DataError, match=r"'toy' \(id_test\): features is NaN or infinite.*'toy/00020\.png'"):
        list(extract(backbone, split, (LOGITS, FEATURES), BatchHalving(8)))


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
