import numpy as np
import pytest
import torch

from openbench.methods.geometry import SHE

from .problems import assert_equal, changed, f, problem, scores, y, z


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


@pytest.mark.parametrize("metric", ["inner_product", "euclidean", "cosine"])
@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes", "many_classes", "dead"])
def test_equals_one_sample_at_a_time(kind, metric):
    data = problem(kind)
    stored, predicted = patterns(data), z(data.test).argmax(axis=1)
    expected = [-similarity(row, stored[c], metric) for row, c in zip(f(data.test), predicted, strict=True)]
    assert_equal(scores(SHE(metric), data), np.array(expected))


def test_a_class_that_is_never_right_takes_the_mean_of_its_samples():
    data = problem()
    never = data.train.labels.clone()
    labels = torch.where(data.train.logits.argmax(dim=1) == 0, 1, never)
    assert bool((labels == 0).any())
    train = changed(data.train, labels=labels)
    method = SHE().fit(train, None)
    torch.testing.assert_close(method.patterns_[0], train.features[labels == 0].mean(dim=0))
    torch.testing.assert_close(method.patterns_[3], train.features.mean(dim=0))
