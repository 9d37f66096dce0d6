from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import pinvh
from sklearn.covariance import EmpiricalCovariance

from openbench.core.request import Field
from openbench.methods import _stats
from openbench.methods.mds import MDS

from .problems import KINDS, assert_equal, f, problem, scores, y


def by_class(data) -> tuple[list[np.ndarray], np.ndarray]:
    """Class means and the precision of class-centred features, class by class with sklearn."""
    features, labels = f(data.train), y(data.train)
    means = [features[labels == c].mean(axis=0) for c in np.unique(labels)]
    centred = np.concatenate([features[labels == c] - m for c, m in zip(np.unique(labels), means, strict=True)])
    covariance = EmpiricalCovariance(assume_centered=True, store_precision=False).fit(centred).covariance_
    return means, pinvh(covariance, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_distances_taken_class_by_class(kind):
    data = problem(kind)
    means, precision = by_class(data)
    distances = [np.einsum("nd,de,ne->n", f(data.test) - m, precision, f(data.test) - m) for m in means]
    assert_equal(scores(MDS(), data), np.min(distances, axis=0))


@pytest.mark.parametrize("kind", KINDS)
def test_normalised_equals_distances_of_unit_vectors(kind):
    data = problem(kind)
    unit = replace(data, train=on_sphere(data.train), test=on_sphere(data.test))
    assert_equal(scores(MDS(normalise=True), data), scores(MDS(), unit), rtol=1e-4)


def on_sphere(x):
    unit = f(x) / np.linalg.norm(f(x), axis=1, keepdims=True)
    return replace(x, columns={**x.columns, Field.FEATURES: torch.tensor(unit, dtype=torch.float32)})


def test_dead_and_duplicated_features_change_nothing():
    data = problem("dead")
    keep = torch.tensor([d for d in range(24) if d >= 4 and d not in (20, 21, 22)])

    def thinned(x):
        return replace(x, columns={**x.columns, Field.FEATURES: x.features[:, keep]})

    full = MDS().fit(data.train, None).score(data.test)
    thin = MDS().fit(thinned(data.train), None).score(thinned(data.test))
    assert_equal(full, thin.double().numpy(), rtol=1e-4)


def test_chunks_of_the_fit_leave_no_trace(monkeypatch):
    data = problem()
    whole = scores(MDS(), data)
    monkeypatch.setattr(_stats, "FIT_BATCH", 37)
    assert_equal(scores(MDS(), data), whole)


def test_classes_that_appear_late_are_counted(monkeypatch):
    """The highest label stands in the last chunk: accumulators grow."""
    data = problem()
    order = torch.argsort(data.train.labels)
    monkeypatch.setattr(_stats, "FIT_BATCH", 50)
    assert_equal(MDS().fit(data.train[order], None).score(data.test), scores(MDS(), data))


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_translation_of_all_features_changes_nothing(offset):
    """Sums of squares of features around 1000 would lose the variance without the shift."""
    data = problem()

    def moved(x):
        return replace(x, columns={**x.columns, Field.FEATURES: x.features + offset})

    found = MDS().fit(moved(data.train), None).score(moved(data.test))
    assert_equal(found, scores(MDS(), data), rtol=2e-3)


def test_more_dimensions_than_samples():
    """n = 20 < d = 24: distances live in the span of the samples, as with a pseudo-inverse."""
    data = problem(n=20)
    means, precision = by_class(data)
    distances = [np.einsum("nd,de,ne->n", f(data.test) - m, precision, f(data.test) - m) for m in means]
    assert_equal(scores(MDS(), data), np.min(distances, axis=0), rtol=1e-4)
