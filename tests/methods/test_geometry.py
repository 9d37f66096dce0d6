"""Class means, weights and boundaries, against loops over samples."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import zmap

from openbench.core.features import Head
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.geometry import CORE, FDBD, NCI, ORA, SHE, CADRef

from .problems import assert_equal, changed, equals, f, given, kinds_but, problem, y, z


def patterns(data) -> dict[int, np.ndarray]:
    features, labels = f(data.train), y(data.train)
    correct = z(data.train).argmax(axis=1) == labels
    found = {}
    for c in range(data.head.num_classes):
        rows = features[correct & (labels == c)]
        rows = rows if len(rows) else features[labels == c]
        found[c] = (rows if len(rows) else features).mean(axis=0)
    return found


def similarity(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    if metric == "euclidean":
        return -float(np.sqrt(((a - b) ** 2).sum()))
    return float(a @ b) / (np.linalg.norm(a) * np.linalg.norm(b) if metric == "cosine" else 1)


@equals(SHE("inner_product"), SHE("euclidean"), SHE("cosine"), kinds=kinds_but("hot"))
def test_she_equals_one_sample_at_a_time(data, method):
    stored, predicted = patterns(data), z(data.test).argmax(axis=1)
    return [-similarity(row, stored[c], method.metric) for row, c in zip(f(data.test), predicted, strict=True)]


def test_she_a_class_that_is_never_right_takes_the_mean_of_its_samples():
    data = problem()
    never = data.train.labels.clone()
    labels = torch.where(data.train.logits.argmax(dim=1) == 0, 1, never)
    assert bool((labels == 0).any())
    train = changed(data.train, labels=labels)
    method = SHE().fit(train, None)
    torch.testing.assert_close(method.patterns_[0], train.features[labels == 0].mean(dim=0))
    torch.testing.assert_close(method.patterns_[3], train.features.mean(dim=0))


def residual(row, weight):
    """The row less its projection on the weight, by least squares."""
    along, *_ = np.linalg.lstsq(weight[:, None], row, rcond=None)
    return row - along[0] * weight


def parts(x, data, patterns) -> np.ndarray:
    cosines = []
    for row, c in zip(f(x), z(x).argmax(axis=1), strict=True):
        r, m = residual(row, data.weight[c]), patterns[c]
        cosines.append(r @ m / np.linalg.norm(r) / np.linalg.norm(m))
    return np.stack([logsumexp(z(x), axis=1), cosines], axis=1)


@equals(CORE(), many=40, rtol=2e-5)
def test_core_equals_residuals_taken_sample_by_sample(data, method):
    """Residuals of each training sample against its own class, averaged; z-scores by scipy."""
    features, labels = f(data.train), y(data.train)
    patterns = []
    for c in range(len(data.weight)):
        own = features[labels == c] if (labels == c).any() else features
        patterns.append(np.mean([residual(row, data.weight[c]) for row in own], axis=0))
    train, test = parts(data.train, data, patterns), parts(data.test, data, patterns)
    return -zmap(test, train, axis=0).sum(axis=1)


def test_core_with_one_feature_there_is_no_residual_and_energy_remains():
    x = torch.tensor([[1.0], [2.0], [4.0], [5.0]])
    head = Head(torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    train = given(features=x, logits=head(x), labels=torch.tensor([0, 1, 0, 1]))
    found = CORE().fit(train, head).score(train.without_labels())
    energy = -logsumexp(z(train), axis=1)
    assert_equal(found.numpy(), (energy - energy.mean()) / energy.std())


def means(data) -> np.ndarray:
    """Of training features by predicted class; of all where a class is never predicted."""
    features, predicted = f(data.train), z(data.train).argmax(axis=1)
    classes = range(len(data.bias))
    return np.stack(
        [features[predicted == c].mean(axis=0) if c in predicted else features.mean(axis=0) for c in classes]
    )


def shifted(kind: str = "rectified", n: int = 600):
    """A problem whose energies are all positive, as those of trained networks are: logits moved by a constant."""
    data = problem(kind, n)
    for x in (data.train, data.val, data.test):
        x.columns[Field.LOGITS].add_(100)
    return data


@equals(CADRef(False))
def test_cadref_caref_equals_one_sample_at_a_time(data, method):
    centres = means(data)[z(data.test).argmax(axis=1)]
    return [np.abs(row - mean).sum() / np.abs(row).sum() for row, mean in zip(f(data.test), centres, strict=True)]


@equals(CADRef(), make=shifted)
def test_cadref_equals_one_feature_at_a_time(data, method):
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
    return expected


def test_cadref_energies_around_zero_leave_scores_finite_and_ordered():
    data = shifted()
    fitted = CADRef().fit(data.train, data.head)
    lower = torch.tensor([0.0, 100.0, 104.9, 150.0, 1100.0])[:, None]
    found = fitted.score(given(features=data.test.features[:1].expand(5, -1), logits=data.test.logits[:1] - lower))
    assert bool(found.isfinite().all())
    assert bool((found.diff() >= 0).all())
    assert found[1] > 2 * found[0]


def test_cadref_training_energies_below_zero_are_refused():
    data = problem()
    data.train.columns[Field.LOGITS].sub_(100)
    with pytest.raises(MethodError, match=r"CADRef.fit: the mean energy of training logits is -9\d"):
        CADRef().fit(data.train, data.head)
    CADRef(False).fit(data.train, data.head)


def test_cadref_a_weight_of_zero_points_nowhere_and_its_feature_counts_for_nothing():
    data = shifted()
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


@equals(NCI(0.0), NCI(1e-4), NCI(0.1))
def test_nci_equals_one_sample_at_a_time(data, method):
    mean = f(data.train).mean(axis=0)
    expected = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        away = row - mean
        expected.append(-data.weight[logits.argmax()] @ away / np.sqrt(away @ away) - method.alpha * np.abs(row).sum())
    return expected


@equals(FDBD(True), FDBD(False), many=40, rtol=2e-5)
def test_fdbd_equals_distances_to_planes(data, method):
    """Each boundary's distance on its own: the point–plane distance of f to {w_c·f + b_c = w_ŷ·f + b_ŷ}."""
    mean = f(data.train).mean(axis=0) if method.distance else 0.0
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        top = logits.argmax()
        planes = [
            abs(logits[top] - logits[c]) / np.sqrt(((data.weight[top] - data.weight[c]) ** 2).sum())
            for c in range(len(logits))
            if c != top
        ]
        result.append(-np.sum(planes) / np.linalg.norm(row - mean))
    return result


def test_fdbd_classes_with_equal_weights_have_no_boundary():
    data = problem()
    weight, bias = data.head.weight.clone(), data.head.bias.clone()
    weight[5], bias[5] = weight[0], -100.0
    twins = FDBD().fit(data.train, Head(weight, bias)).score(data.test)
    assert bool(twins.isfinite().all())
    assert torch.all(twins <= 0)


@equals(ORA("max"), ORA("mean"), ORA("min"), many=20, rtol=5e-6)
def test_ora_equals_angles_to_projections(data, method):
    """Every projection made, every angle taken by arccos, class by class and sample by sample."""
    features, labels, over = f(data.train), y(data.train), {"max": max, "mean": np.mean, "min": min}
    mean = np.mean([features[labels == c].mean(axis=0) for c in np.unique(labels)], axis=0)
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        top = logits.argmax()
        angles = []
        for c in range(len(logits)):
            gap = data.weight[top] - data.weight[c]
            if c != top:
                on = row - (logits[top] - logits[c]) * gap / (gap @ gap)
                a, b = row - mean, on - mean
                angles.append(np.arccos(np.clip(a @ b / np.linalg.norm(a) / np.linalg.norm(b), -1, 1)))
        result.append(-over[method.aggregation](angles) / np.pi)
    return result


def test_ora_classes_with_equal_weights_and_a_feature_at_the_mean_have_angle_zero():
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    train = given(features=[[1.0, 2.0], [3.0, 4.0]], logits=torch.zeros(2, 2), labels=[0, 1])
    twins = [ORA(how).fit(train, Head(weight, torch.tensor([0.0, 5.0]))) for how in ("max", "mean", "min")]
    x = given(features=[[5.0, 1.0], [2.0, 3.0]], logits=[[0.0, 5.0]] * 2)
    assert [method.score(x).tolist() for method in twins] == [[0.0, 0.0]] * 3
    apart = ORA().fit(train, Head(torch.eye(2), torch.zeros(2)))
    assert apart.score(x)[1].item() == 0 > apart.score(x)[0].item()
