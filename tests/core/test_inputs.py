"""What methods are given through Python: an error that names method and cause, or scores."""

import re

import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.engine.evaluate import score
from openbench.errors import FieldError, MethodError
from openbench.methods.knn import KNN
from openbench.methods.mds import MDS
from openbench.methods.msp import MSP


def features(n=20, **changes):
    columns = {Field.FEATURES: torch.randn(n, 4), Field.LABELS: torch.arange(n) % 2}
    return FeatureSet({**columns, **{Field(name): value for name, value in changes.items()}})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_features_of_another_dtype_are_refused(dtype):
    with pytest.raises(FieldError, match=rf"'features' is {dtype} — pass tensor\.to\(torch\.float32\)"):
        features(features=torch.zeros(20, 4, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_heads_of_another_dtype_are_refused(name, dtype):
    parts = {"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}
    with pytest.raises(FieldError, match=rf"Head: {name} is {dtype} — pass tensor\.to\(torch\.float32\)"):
        Head(**{**parts, name: parts[name].to(dtype)})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_heads_that_are_not_finite_are_refused(value):
    with pytest.raises(FieldError, match=r"Head: weight has NaN or infinity"):
        Head(torch.full((3, 4), value), torch.zeros(3))


def test_arrays_are_refused():
    with pytest.raises(FieldError, match=r"'features' is a numpy\.ndarray — pass a torch\.Tensor of"):
        features(features=np.zeros((20, 4), dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "shape"), [("features", (20, 0)), ("features", (20,)), ("features", (20, 2, 2)), ("logits", (20, 0))]
)
def test_columns_of_another_shape_are_refused(name, shape):
    with pytest.raises(FieldError, match=rf"'{name}' has the shape {re.escape(str(shape))} — \(n, d\) with d ≥ 1"):
        features(**{name: torch.zeros(shape)})


def test_maps_without_channels_are_refused():
    with pytest.raises(FieldError, match=r"'stage1' has the shape \(20, 0, 2, 2\)"):
        FeatureSet({}, {"stage1": torch.zeros(20, 0, 2, 2)})


def test_labels_of_another_dtype_are_refused():
    with pytest.raises(FieldError, match=r"'labels' is torch\.float32 — pass tensor\.to\(torch\.int64\)"):
        features(labels=torch.zeros(20))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
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


def test_labels_below_0_are_refused():
    with pytest.raises(MethodError, match=r"MDS\.fit: label -1 — allowed: classes from 0"):
        MDS().fit(features(labels=torch.tensor([-1] * 20)), None)


@pytest.mark.parametrize(
    ("head", "logits", "allowed"),
    [
        (Head(torch.zeros(2, 4), torch.zeros(2)), {}, "the head's classes, 0 to 1"),
        (None, {"logits": torch.zeros(20, 7)}, "the logits' classes, 0 to 6"),
        (None, {}, "classes, 0 to 999999"),
    ],
)
def test_labels_beyond_the_classes_are_refused_before_means_are_kept_for_them(head, logits, allowed):
    train = features(labels=torch.tensor([10**9] + [0] * 19), **logits)
    with pytest.raises(MethodError, match=rf"MDS\.fit: label 1000000000 — allowed: {allowed}, as"):
        MDS().fit(train, head)


def test_columns_that_a_method_does_not_read_may_be_anything():
    MDS().fit(features(logits=torch.full((20, 2), float("nan"))), None)


class Everywhere(MSP):
    def score(self, x):
        return torch.full((len(x),), float("inf"))


def test_scores_that_are_all_infinite_are_refused():
    with pytest.raises(MethodError, match=r"Everywhere\.score on cars: all 5 scores are infinite"):
        score(Everywhere(), FeatureSet({Field.LOGITS: torch.zeros(5, 3)}), 2, "cars")
