import numpy as np
import pytest
import torch
from scipy.linalg import pinvh
from sklearn.covariance import EmpiricalCovariance

from openbench.methods import _stats
from openbench.methods.gaussians import MDS

from .problems import KINDS, assert_equal, changed, f, on_sphere, problem, scores, without_dead, y


def by_class(data) -> np.ndarray:
    """The distance to the nearest class mean, with sklearn's covariance of class-centred features."""
    features, labels = f(data.train), y(data.train)
    means = [features[labels == c].mean(axis=0) for c in np.unique(labels)]
    centred = np.concatenate([features[labels == c] - m for c, m in zip(np.unique(labels), means, strict=True)])
    covariance = EmpiricalCovariance(assume_centered=True, store_precision=False).fit(centred).covariance_
    precision = pinvh(covariance, rtol=1e-10)
    return np.min([np.einsum("nd,de,ne->n", f(data.test) - m, precision, f(data.test) - m) for m in means], axis=0)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_distances_taken_class_by_class(kind):
    data = problem(kind)
    assert_equal(scores(MDS(), data), by_class(data))


@pytest.mark.parametrize("kind", KINDS)
def test_normalised_equals_distances_of_unit_vectors(kind):
    data = problem(kind)
    assert_equal(scores(MDS(normalise=True), data), scores(MDS(), on_sphere(data)), rtol=1e-4)


def test_dead_and_duplicated_features_change_nothing():
    data = problem("dead")
    thin = MDS().fit(without_dead(data.train), None).score(without_dead(data.test))
    assert_equal(scores(MDS(), data), thin.numpy(), rtol=1e-4)


def test_classes_that_appear_late_are_counted(monkeypatch):
    """The highest label stands in the last chunk: accumulators grow."""
    data = problem()
    whole, order = scores(MDS(), data), torch.argsort(data.train.labels)
    monkeypatch.setattr(_stats, "FIT_BATCH", 50)
    assert_equal(MDS().fit(data.train[order], None).score(data.test), whole)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_translation_of_all_features_changes_nothing(offset):
    """Sums of squares of features around 1000 would lose the variance without the shift."""
    data = problem()
    train, test = (changed(x, features=x.features + offset) for x in (data.train, data.test))
    found = MDS().fit(train, None).score(test)
    assert_equal(found, scores(MDS(), data), rtol=2e-3)


def test_more_dimensions_than_samples():
    """n = 20 < d = 24: distances live in the span of the samples, as with a pseudo-inverse."""
    data = problem(n=20)
    assert_equal(scores(MDS(), data), by_class(data), rtol=1e-4)
