import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.errors import FieldError


def features(n=5):
    g = torch.Generator().manual_seed(0)
    columns = {Field.FEATURES: torch.randn(n, 3, generator=g), Field.LABELS: torch.arange(n) % 2}
    return FeatureSet(columns, {"stage4": torch.randn(n, 2, generator=g)})


def test_reading_an_undeclared_column_is_an_error():
    with pytest.raises(FieldError, match="'logits' read but not there"):
        _ = features().logits
    with pytest.raises(FieldError, match="stage1"):
        features().map("stage1")


def test_labels_are_gone_before_score():
    with pytest.raises(FieldError, match="visible in fit only"):
        _ = features().without_labels().labels


def test_batches_cover_every_row_once_in_order():
    x = features()
    parts = list(x.batches(2))
    assert [len(p) for p in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([p.features for p in parts]), x.features)
    assert torch.equal(torch.cat([p.map("stage4") for p in parts]), x.map("stage4"))
    assert torch.equal(torch.cat([p.labels for p in parts]), x.labels)


def test_head_is_the_affine_map():
    weight, bias, f = torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([0.5, 0.0]), torch.tensor([[3.0, 4.0]])
    assert Head(weight, bias)(f).tolist() == [[11.5, -4.0]]


def test_a_set_contains_the_columns_and_maps_that_it_has():
    x = features()
    assert [name in x for name in Field] == [False, True, True, True, False, False, False, False]
    assert Field.MAPS not in FeatureSet({Field.FEATURES: torch.zeros(1, 2)})
