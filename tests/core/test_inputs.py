"""What methods are given through Python: an error that names method and cause, or scores."""

import pytest
import torch

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.engine.evaluate import score
from openbench.errors import FieldError, MethodError
from openbench.methods.knn import KNN
from openbench.methods.mds import MDS
from openbench.methods.msp import MSP


def features(n=20, **changes):
    columns = {Field.FEATURES: torch.randn(n, 4), Field.LABELS: torch.arange(n) % 2}
    return FeatureSet({**columns, **{Field(name): value for name, value in changes.items()}})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_features_of_another_dtype_are_refused(dtype):
    with pytest.raises(FieldError, match=rf"'features' is {dtype} — torch\.float32 expected"):
        features(features=torch.zeros(20, 4, dtype=dtype))


def test_labels_of_another_dtype_are_refused():
    with pytest.raises(FieldError, match=r"'labels' is torch\.float32 — torch\.int64 expected"):
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


class Everywhere(MSP):
    def score(self, x):
        return torch.full((len(x),), float("inf"))


def test_scores_that_are_all_infinite_are_refused():
    with pytest.raises(MethodError, match=r"Everywhere\.score on cars: all 5 scores are infinite"):
        score(Everywhere(), FeatureSet({Field.LOGITS: torch.zeros(5, 3)}), 2, "cars")
