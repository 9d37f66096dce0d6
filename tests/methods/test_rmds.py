import numpy as np
import pytest
from scipy.linalg import pinvh
from sklearn.covariance import EmpiricalCovariance

from openbench.methods.gaussians import RMDS

from .problems import KINDS, assert_equal, f, on_sphere, problem, scores, without_dead, y


def distances(features: np.ndarray, mean: np.ndarray, cloud: np.ndarray) -> np.ndarray:
    """Squared Mahalanobis distances to `mean` under the covariance of `cloud`, by sklearn and SciPy."""
    covariance = EmpiricalCovariance(assume_centered=True, store_precision=False).fit(cloud).covariance_
    return np.einsum("nd,de,ne->n", features - mean, pinvh(covariance, rtol=1e-10), features - mean)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_distances_taken_class_by_class(kind):
    data = problem(kind)
    features, labels, test = f(data.train), y(data.train), f(data.test)
    means = {c: features[labels == c].mean(axis=0) for c in np.unique(labels)}
    within = np.stack([row - means[label] for row, label in zip(features, labels, strict=True)])
    nearest = np.min([distances(test, mean, within) for mean in means.values()], axis=0)
    overall = features.mean(axis=0)
    background = distances(test, overall, features - overall)
    # The difference of two distances: its error is measured by them, not by itself.
    np.testing.assert_allclose(scores(RMDS(), data), nearest - background, rtol=1e-5, atol=1e-5 * nearest.max())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many_classes"])
def test_normalised_equals_distances_of_unit_vectors(kind):
    data = problem(kind)
    found, expected = scores(RMDS(normalise=True), data), scores(RMDS(), on_sphere(data))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3 * np.abs(expected).max())


def test_dead_and_duplicated_features_change_nothing():
    data = problem("dead")
    thin = RMDS().fit(without_dead(data.train), None).score(without_dead(data.test))
    assert_equal(scores(RMDS(), data), thin.numpy(), rtol=1e-4)
