import numpy as np
import pytest
import torch

from openbench.methods._stats import balanced_draw, class_means, predictions

from .problems import KINDS, assert_equal, f, problem, y, z


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
    drawn = balanced_draw(torch.tensor([0, 0, 3, 3, 3]), 4, 0)
    assert np.bincount(torch.tensor([0, 0, 3, 3, 3])[drawn]).tolist() == [2, 0, 0, 2]


def test_means_do_not_need_all_features_in_one_batch():
    """As streamed from memory-mapped columns."""
    train = problem(n=9000).train
    expected = f(train)[y(train) == 0].mean(axis=0)
    assert_equal(class_means(train, 6)[0], expected, rtol=1e-9)
