"""What methods are given through Python: an error that names method and cause, or scores."""

import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.errors import FieldError, MethodError
from openbench.methods.gaussians import MDS
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP


def features(n=20, **changes):
    columns = {Field.FEATURES: torch.randn(n, 4), Field.LABELS: torch.arange(n) % 2}
    return FeatureSet({**columns, **{Field(name): value for name, value in changes.items()}})


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({}, "none at all"),
        ({"features": torch.zeros(3, 2), "logits": torch.zeros(2, 2)}, "different length"),
        ({"features": np.zeros((20, 4), np.float32)}, r"'features' is a numpy\.ndarray — pass a torch\.Tensor of"),
        ({"features": torch.zeros(20, 4).double()}, r"'features' is torch\.float64 — pass tensor\.to"),
        ({"labels": torch.zeros(20)}, r"'labels' is torch\.float32 — pass tensor\.to\(torch\.int64\)"),
        ({"labels": torch.zeros(5, 1, dtype=torch.int64)}, r"'labels' has the shape \(5, 1\) — \(n,\) expected"),
        ({"features": torch.zeros(20)}, r"'features' has the shape \(20,\) — \(n, d\) with d ≥ 1"),
        ({"features": torch.zeros(20, 2, 2)}, r"'features' has the shape \(20, 2, 2\)"),
        ({"logits": torch.zeros(20, 0)}, r"'logits' has the shape \(20, 0\) — \(n, d\) with d ≥ 1"),
    ],
)
def test_columns_of_another_kind_or_shape_are_refused(columns, says):
    with pytest.raises(FieldError, match=says):
        FeatureSet({Field(name): column for name, column in columns.items()})


def test_maps_without_channels_are_refused():
    with pytest.raises(FieldError, match=r"'stage1' has the shape \(20, 0, 2, 2\)"):
        FeatureSet({}, {"stage1": torch.zeros(20, 0, 2, 2)})


@pytest.mark.parametrize(
    ("weight", "bias", "says"),
    [
        (torch.zeros(3, 4).double(), torch.zeros(3), r"Head: weight is torch\.float64 — pass tensor\.to"),
        (torch.zeros(3, 4), torch.zeros(3).bfloat16(), r"Head: bias is torch\.bfloat16 — pass tensor\.to"),
        (torch.full((3, 4), float("nan")), torch.zeros(3), "Head: weight has NaN or infinity"),
        (torch.zeros(3, 4), torch.full((3,), float("inf")), "Head: bias has NaN or infinity"),
        (torch.zeros(3, 2), torch.zeros(2), r"Head: weight \(3, 2\), bias \(2,\) — \(c, d\)"),
    ],
)
def test_heads_of_another_kind_or_shape_are_refused(weight, bias, says):
    with pytest.raises(FieldError, match=says):
        Head(weight, bias)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_rows_that_are_not_finite_are_refused_by_method_and_row(value):
    logits = torch.randn(10, 3)
    logits[7, 1] = value
    with pytest.raises(MethodError, match=r"MSP\.score: 1 of 10 rows of 'logits' are not finite \(first: row 7\)"):
        MSP().score(FeatureSet({Field.LOGITS: logits}))


def test_sums_that_overflow_are_no_reason_to_refuse():
    scores = MSP().score(FeatureSet({Field.LOGITS: torch.full((10, 3), 3e38)}))
    assert scores.isfinite().all()


def test_no_rows_are_refused():
    with pytest.raises(MethodError, match=r"KNN\.score: no rows to score"):
        KNN(k=2).fit(features(), None).score(features(0))
    with pytest.raises(MethodError, match=r"KNN\.fit: the training set has no rows"):
        KNN(k=2).fit(features(0), None)


@pytest.mark.parametrize(
    ("head", "logits", "allowed"),
    [
        (Head(torch.zeros(2, 4), torch.zeros(2)), {}, "the head's classes, 0 to 1"),
        (None, {"logits": torch.zeros(20, 7)}, "the logits' classes, 0 to 6"),
        (None, {}, "classes, 0 to 999999"),
    ],
)
def test_labels_outside_the_classes_are_refused_before_means_are_kept_for_them(head, logits, allowed):
    with pytest.raises(MethodError, match=r"MDS\.fit: label -1 — allowed: classes from 0"):
        MDS().fit(features(labels=torch.tensor([-1] * 20), **logits), head)
    train = features(labels=torch.tensor([10**9] + [0] * 19), **logits)
    with pytest.raises(MethodError, match=rf"MDS\.fit: label 1000000000 — allowed: {allowed}, as"):
        MDS().fit(train, head)


def test_columns_that_a_method_does_not_read_may_be_anything():
    MDS().fit(features(logits=torch.full((20, 2), float("nan"))), None)
