"""Means, draws and moments by class against NumPy, in batches, and where they are undefined."""

import numpy as np
import pytest
import torch

from openbench.errors import MethodError
from openbench.methods._stats import balanced_draw, class_means, mean_feature, moments, predictions, sorted_rows
from openbench.methods.gaussians import MDS, RMDS

from .problems import KINDS, assert_equal, changed, f, given, problem, y, z


def test_rows_are_sorted_beside_what_was_given():
    x = 100 * torch.randn(7, 501)
    kept = x.clone()
    torch.testing.assert_close(sorted_rows(x), x.sort(dim=1).values, rtol=0, atol=0)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("n", [1, 511, 513, 4097])
def test_mean_is_that_of_float64(n):
    x = given(features=5 + torch.randn(n, 9, generator=torch.Generator().manual_seed(n)))
    np.testing.assert_allclose(mean_feature(x), x.features.double().numpy().mean(axis=0), rtol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_means_are_those_of_each_class_and_of_all_where_it_has_no_sample(kind):
    train = problem(kind).train
    features, classes = f(train), train.logits.shape[1]
    for of, index in ((None, y(train)), (predictions, z(train).argmax(axis=1))):
        found = class_means(train, classes, *([of] if of else []))
        expected = [features[index == c].mean(axis=0) if c in index else features.mean(axis=0) for c in range(classes)]
        assert_equal(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("size", "counts"), [(9, [3, 3, 3]), (10, [3, 3, 4]), (25, [5, 10, 10]), (99, [5, 10, 40])])
def test_a_balanced_draw_takes_of_each_class_as_many_as_it_has(size, counts):
    labels = torch.tensor([0] * 5 + [1] * 10 + [2] * 40)[torch.randperm(55, generator=torch.Generator().manual_seed(1))]
    drawn = balanced_draw(labels, size, 0)
    assert bool((drawn.diff() > 0).all())
    assert sorted(np.bincount(labels[drawn]).tolist()) == sorted(counts)


def test_a_class_without_samples_is_passed_over():
    labels = torch.tensor([0, 0, 3, 3, 3])
    assert np.bincount(labels[balanced_draw(labels, 4, 0)]).tolist() == [2, 0, 0, 2]


def test_means_do_not_need_all_features_in_one_batch():
    """As streamed from memory-mapped columns."""
    train = problem(n=9000).train
    expected = f(train)[y(train) == 0].mean(axis=0)
    assert_equal(class_means(train, 6)[0], expected, rtol=1e-9)


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
