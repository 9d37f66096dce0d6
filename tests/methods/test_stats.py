"""Means, draws and moments by class against NumPy, in batches, and where they are undefined."""

import numpy as np
import pytest
import torch

from openbench.errors import MethodError
from openbench.methods._stats import moments
from openbench.methods.gaussians import MDS, RMDS

from .problems import assert_equal, changed, f, problem, y


@pytest.mark.parametrize("cls", [MDS, RMDS])
def test_samples_that_all_lie_on_their_class_means_are_an_error(cls):
    data = problem()
    means = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    with pytest.raises(MethodError, match=rf"^{cls.__name__}\.fit: training features do not vary within classes"):
        cls().fit(changed(data.train, features=means[data.train.labels]), data.head)


def test_the_smallest_differences_that_float32_can_write_are_enough():
    data = problem()
    features = torch.full((600, 24), 1000.0)
    features[::2, 0] = float(np.nextafter(np.float32(1000), np.float32(2000)))
    found = moments(changed(data.train, features=features), "test", by_class=False).total_covariance()
    assert_equal(found.numpy(), np.cov(features.double().numpy().T, bias=True), rtol=1e-3)


def test_tight_clusters_still_have_a_covariance():
    """Neural collapse: features a thousandth of the distance between means from their mean."""
    data = problem()
    means = torch.tensor(
        np.stack([f(data.train)[y(data.train) == c].mean(axis=0) if c != 3 else np.zeros(24) for c in range(6)])
    )
    features = (means[data.train.labels] + 1e-3 * (data.train.features - means[data.train.labels])).float()
    tight = moments(changed(data.train, features=features), "test").within_covariance()
    assert_equal(tight.numpy(), 1e-6 * moments(data.train, "test").within_covariance().numpy(), rtol=1e-2)
