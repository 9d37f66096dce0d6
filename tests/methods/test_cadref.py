import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from openbench.core.features import Head
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.geometry import CADRef

from .problems import KINDS, assert_equal, changed, f, given, problem, scores, z


def means(data) -> np.ndarray:
    """Of training features by predicted class; of all where a class is never predicted."""
    features, predicted = f(data.train), z(data.train).argmax(axis=1)
    classes = range(len(data.bias))
    return np.stack(
        [features[predicted == c].mean(axis=0) if c in predicted else features.mean(axis=0) for c in classes]
    )


def shifted(kind: str):
    """A problem whose energies are all positive, as those of trained networks are: logits moved by a constant."""
    data = problem(kind)
    for x in (data.train, data.val, data.test):
        x.columns[Field.LOGITS].add_(100)
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_caref_equals_one_sample_at_a_time(kind):
    data = problem(kind)
    centres = means(data)[z(data.test).argmax(axis=1)]
    expected = [np.abs(row - mean).sum() / np.abs(row).sum() for row, mean in zip(f(data.test), centres, strict=True)]
    assert_equal(scores(CADRef(False), data), np.array(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_cadref_equals_one_feature_at_a_time(kind):
    data = shifted(kind)
    centres, average = means(data), logsumexp(z(data.train), axis=1).mean()
    expected = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        raising = lowering = 0.0
        predicted = logits.argmax()
        for value, centre, weight in zip(row, centres[predicted], data.weight[predicted], strict=True):
            change = value - centre
            if weight * change > 0:
                raising += abs(change)
            elif weight * change < 0:
                lowering += abs(change)
        length = np.abs(row).sum()
        expected.append(raising / length / logsumexp(logits) + lowering / length / average)
    assert_equal(scores(CADRef(), data), np.array(expected))


def test_energies_around_zero_leave_scores_finite_and_ordered():
    data = shifted("rectified")
    fitted = CADRef().fit(data.train, data.head)
    lower = torch.tensor([0.0, 100.0, 104.9, 150.0, 1100.0])[:, None]
    found = fitted.score(given(features=data.test.features[:1].expand(5, -1), logits=data.test.logits[:1] - lower))
    assert bool(found.isfinite().all())
    assert bool((found.diff() >= 0).all())
    assert found[1] > 2 * found[0]


def test_training_energies_below_zero_are_refused():
    data = problem()
    data.train.columns[Field.LOGITS].sub_(100)
    with pytest.raises(MethodError, match=r"CADRef.fit: the mean energy of training logits is -9\d"):
        CADRef().fit(data.train, data.head)
    CADRef(False).fit(data.train, data.head)


def test_a_weight_of_zero_points_nowhere_and_its_feature_counts_for_nothing():
    data = shifted("rectified")
    weight = data.head.weight.clone()
    weight[:, 3] = 0
    method = CADRef().fit(data.train, Head(weight, data.head.bias))
    found = method.score(data.test)
    assert bool(found.isfinite().all())
    moved = data.test.features.clone()
    moved[:, 3] = moved[:, 3].roll(1)  # another value of the feature, the norm aside
    other = method.score(changed(data.test, features=moved))
    norms = [x.abs().sum(dim=1) for x in (data.test.features, moved)]
    torch.testing.assert_close(other * norms[1], found * norms[0], rtol=1e-5, atol=1e-6)
