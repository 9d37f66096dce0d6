"""Methods as estimators on arrays: right scores, scikit-learn's habits, and errors that say what to pass."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.svm import SVC
from sklearn.utils.validation import check_is_fitted

import openbench as ob
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role
from openbench.errors import ConfigError, DataError, MethodError, NotApplicableError, NotFittedError
from openbench.methods.knn import KNN

RNG = np.random.default_rng(3)
X = RNG.normal(size=(120, 6)).astype(np.float32) + 4 * np.eye(6, dtype=np.float32)[np.arange(120) % 3]
Y = np.arange(120) % 3
TEST = RNG.normal(size=(40, 6)).astype(np.float32)
W, B = RNG.normal(size=(3, 6)).astype(np.float32), RNG.normal(size=3).astype(np.float32)


@dataclass
class NearestMean(Method):
    """Squared distance to the nearest class mean."""

    reference: ClassVar[str] = "a class of a user's own"
    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)

    scale: float = 1.0

    def fit(self, train, head):
        self.means_ = torch.stack([train.features[train.labels == y].mean(0) for y in train.labels.unique()])
        return self

    def score(self, x):
        return self.scale * torch.cdist(x.features, self.learnt("means_")).square().amin(1)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_knn_is_scikit_learns():
    distances, _ = NearestNeighbors(n_neighbors=7).fit(unit(X)).kneighbors(unit(TEST))
    scores = ob.method("knn", k=7).fit(X, Y).score(TEST)
    assert scores.dtype == np.float32
    assert scores == pytest.approx(distances[:, 6] ** 2, abs=1e-5)
    assert ob.method("knn", k=7).fit(X).score(TEST) == pytest.approx(scores)  # labels are not needed


def test_logits_are_computed_from_the_head_where_they_are_not_given():
    z = TEST.astype(np.float64) @ W.T + B
    p = np.exp(z - z.max(1, keepdims=True))
    expected = -(p / p.sum(1, keepdims=True)).max(1)
    assert ob.method("msp").fit(X, head=(W, B)).score(TEST) == pytest.approx(expected, abs=1e-6)
    assert ob.method("msp").fit(X).score(TEST, logits=z) == pytest.approx(expected, abs=1e-6)
    linear = torch.nn.Linear(6, 3)
    linear.weight.data, linear.bias.data = torch.tensor(W), torch.tensor(B)
    assert ob.method("msp").fit(X, head=linear).score(TEST) == pytest.approx(expected, abs=1e-6)
    for labels in (Y, Y > 0):  # of two classes, scikit-learn has one row
        fitted = LogisticRegression().fit(X, labels)
        answer = -fitted.predict_proba(TEST).max(1)
        assert ob.method("msp").fit(X, head=fitted).score(TEST) == pytest.approx(answer, abs=1e-5)


def test_an_estimator_has_the_habits_of_scikit_learn():
    knn = ob.method("knn", k=9)
    assert repr(knn) == "method('knn', k=9)"
    learnt = {"method": "knn", "k": 9, "index": "exact", "probes": 16, "normalise": True, "precision": "float32"}
    assert knn.get_params() == learnt
    assert knn.fit(X, Y) is knn
    check_is_fitted(knn)
    twin = clone(knn)
    assert twin.get_params() == knn.get_params()
    with pytest.raises(NotFittedError, match=r"method\('knn'.*call fit\(X, y\) first"):
        twin.score(TEST)
    assert np.array_equal(twin.fit(X, Y).score(TEST), knn.score(TEST))
    assert knn.set_params(k=3).get_params()["k"] == 3
    with pytest.raises(NotFittedError):
        knn.score(TEST)
    assert knn.set_params(method="msp").get_params() == {"method": "msp", "exact": False}


def test_an_object_goes_wherever_a_name_goes():
    own = ob.method(NearestMean(scale=2.0))
    means = np.stack([X[y == Y].mean(0) for y in range(3)])
    expected = 2 * ((TEST[:, None] - means) ** 2).sum(2).min(1)
    assert own.fit(X, Y).score(TEST) == pytest.approx(expected, rel=1e-4)
    assert clone(own).fit(X, Y).score(TEST) == pytest.approx(expected, rel=1e-4)
    assert own.set_params(scale=1.0).fit(X, Y).score(TEST) == pytest.approx(expected / 2, rel=1e-4)
    assert np.array_equal(ob.method(KNN(k=5)).fit(X, Y).score(TEST), ob.method("knn", k=5).fit(X, Y).score(TEST))


def test_a_method_that_is_fitted_on_validation_is_fitted_on_the_first_argument_with_val_or_without():
    alone, beside = (ob.method("temp_scaling").fit(X, Y, head=(W, B), **how) for how in ({}, {"val": (X[:9], Y[:9])}))
    assert np.array_equal(alone.score(TEST), beside.score(TEST))


def test_a_method_made_of_others_learns_its_weights_from_validation():
    pair = ob.method("knn_msp")
    with pytest.raises(NotApplicableError, match=r"'knn_msp' weighs its parts on ID validation — pass val="):
        pair.fit(X, Y, head=(W, B))
    scores = pair.fit(X, Y, head=(W, B), val=(X[:60], Y[:60])).score(TEST)
    assert scores.shape == (40,)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ob.method("knm"), ConfigError, "method 'knm' not found in configs/method; did you mean 'knn'"),
        (lambda: ob.method("knn", K=3), ConfigError, "'knn' has no key 'K' — allowed: k, index"),
        (lambda: ob.method("knn", k=0), ConfigError, "'knn'.k — found 0, allowed: a whole number ≥ 1"),
        (lambda: ob.method(NearestMean), ConfigError, "is the class NearestMean, not an object"),
        (lambda: ob.method("odin").fit(X), NotApplicableError, "'odin' reads input gradients, and an estimator has"),
        (lambda: ob.method("knn_mfs").fit(X), NotApplicableError, "'knn_mfs' reads mixed images, and an estimator has"),
        (lambda: ob.method("neglabel").fit(X, head=(W, B)), NotApplicableError, "'neglabel' reads embeddings of text"),
        (lambda: ob.method("cover").fit(X, val=(X, Y)), NotApplicableError, "'cover' reads corrupted images"),
        (lambda: ob.method("knn_msp").fit(X, head=(W, B), val=X), MethodError, r"X has shape \(\d,\)"),
        (lambda: ob.method("msp").fit(X).score(X), NotApplicableError, r"reads logits — pass logits=…, or"),
        (lambda: ob.method("react").fit(X), NotApplicableError, r"reads the head — pass head=\(W, b\)"),
        (lambda: ob.method("mds").fit(X), NotApplicableError, "reads labels — pass y"),
        (lambda: ob.method("mds").fit(X, Y - 1), DataError, "y: .*, -1 to 1 — allowed"),
        (lambda: ob.method("knn").fit(X[0]), MethodError, r"X has shape \(6,\) — allowed: \(n, d\)"),
        (lambda: ob.method("knn", k=2).fit(X).score(TEST[:, :5]), MethodError, "X has 5 features — fit had 6"),
        (lambda: ob.method("knn").fit(np.where(X > 5, np.nan, X)), DataError, "X has NaN or infinity in"),
        (lambda: ob.method("msp").fit(X, head=(W.T, B)), DataError, r"head: W has shape \(6, 3\) .* pass W.T"),
        (lambda: ob.method("msp").fit(X, head=W), DataError, "head is a ndarray — allowed: "),
        (lambda: ob.method("msp").fit(X, head=SVC(kernel="linear").fit(X, Y)), DataError, "row for each pair of class"),
        (lambda: ob.method("msp").fit(X).score(TEST, logits=W), MethodError, "40 rows of X and 3 of logits"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(call, error, words):
    with pytest.raises(error, match=words):
        call()
