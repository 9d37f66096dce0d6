"""One pass over a split: rows in order, nothing lost, no number that is not finite."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from openbench.core.request import Field, Perturb, Request
from openbench.errors import DataError, FieldError
from openbench.features.columns import Column, columns_of_pass, pass_for, read_by
from openbench.features.extract import extract, select

from .feature_toys import Pixels, toy_backbone, toy_split

LOGITS, FEATURES = Column(Field.LOGITS), Column(Field.FEATURES)


def joined(column: Column, start: int = 0, batch_size: int = 7, workers: int = 0) -> NDArray[np.float32]:
    split = select(toy_split(), range(start, len(toy_split())))
    return np.concatenate([rows[column] for rows in extract(toy_backbone(), split, (column,), batch_size, workers)])


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
        list(extract(backbone, split, (LOGITS, FEATURES), 8))


def test_names_tell_layers_reductions_and_steps_apart() -> None:
    step = Perturb(1000.0, 0.0014)
    columns = [
        LOGITS,
        FEATURES,
        Column(Field.LOGITS, perturb=step),
        Column(Field.LOGITS, perturb=replace(step, kind="peak")),
        Column(Field.LOGITS, perturb=replace(step, temperature=1.0)),
        Column(Field.MAPS, "stage4", "gram"),
        Column(Field.MAPS, "stage4", "mean"),
        Column(Field.MAPS, "stage3", "mean"),
    ]
    assert len({c.name for c in columns}) == len(columns)
    assert LOGITS.name == "logits"
    assert columns[5].name == "maps.stage4.gram"
    assert columns[2].name.startswith("logits.")


def test_a_pass_for_some_columns_reads_just_these_and_not_those_of_two_passes() -> None:
    request = Request(
        fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("stage1", "stage2"), pool="max", perturb=Perturb(1.0, 0.1)
    )
    assert read_by(pass_for(read_by(request))) == read_by(request)
    assert {c.field for c in columns_of_pass(toy_backbone(), request)} == {Field.LOGITS, Field.FEATURES, Field.MAPS}
    with pytest.raises(FieldError, match="cannot come from one pass"):
        pass_for((LOGITS, Column(Field.LOGITS, perturb=Perturb())))
