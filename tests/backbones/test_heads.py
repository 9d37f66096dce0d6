"""Heads fitted on features: what scikit-learn fits at the same λ, the nearest mean, and votes of neighbours."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from openbench.backbones import heads
from openbench.backbones.heads import LAMBDAS, NearestNeighbours, linear_probe, nearest_mean
from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import DataError

from ..logged import logged  # noqa: TID252 — the tests are no package

CLASSES, D = 3, 5
CENTRES = np.random.default_rng(9).normal(size=(CLASSES, D))


def drawn(seed, n=90, spread=1.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % CLASSES
    x = (7 + 3 * (CENTRES[y] + spread * rng.normal(size=(n, D)))).astype(np.float32)
    return FeatureSet({Field.FEATURES: torch.from_numpy(x), Field.LABELS: torch.from_numpy(y)})


TRAIN, VAL = drawn(0), drawn(1, 60)
X, Y = TRAIN.features.numpy().astype(np.float64), TRAIN.labels.numpy()


@pytest.mark.parametrize("batch", [90, 40])
def test_linear_probe_is_scikit_learns_at_the_chosen_weight(batch, monkeypatch):
    monkeypatch.setattr(heads, "_BATCH", batch)
    found = linear_probe(TRAIN, VAL, CLASSES)
    scaled = (X - X.mean(0)) / np.sqrt(((X - X.mean(0)) ** 2).mean())
    oracle = LogisticRegression(C=1 / (len(X) * found.about["lambda"]), tol=1e-10, max_iter=10_000).fit(scaled, Y)
    expected = oracle.predict_proba((VAL.features.numpy() - X.mean(0)) / np.sqrt(((X - X.mean(0)) ** 2).mean()))
    assert torch.softmax(found.head(VAL.features), 1).numpy() == pytest.approx(expected, abs=1e-4)
    assert [trial["lambda"] for trial in found.about["trials"]] == list(LAMBDAS)
    best = max(found.about["trials"], key=lambda trial: (trial["accuracy"], -trial["cross_entropy"]))
    assert best["lambda"] == found.about["lambda"]
    answers = found.head(VAL.features).argmax(1)
    assert found.about["id_val_accuracy"] == pytest.approx(float((answers == VAL.labels).float().mean()))


@pytest.mark.parametrize(("steps", "early"), [(3000, False), (3, True)])
def test_what_is_left_of_the_gradient_is_recorded_and_said_where_it_is_too_much(steps, early, monkeypatch):
    monkeypatch.setattr(heads, "LAMBDAS", (0.1,))
    monkeypatch.setitem(heads._OPTIONS, "maxiter", steps)
    with logged() as said:
        found = linear_probe(TRAIN, VAL, CLASSES)
    scale = np.sqrt(((X - X.mean(0)) ** 2).mean())
    scaled, W = (X - X.mean(0)) / scale, found.head.weight.numpy() * scale
    p = torch.softmax(found.head(TRAIN.features).double(), 1).numpy() - np.eye(CLASSES)[Y]
    gradient = np.abs(p.T @ scaled / (len(X) * 0.1) + W).max(), np.abs(p.mean(0) / 0.1).max()
    (trial,) = found.about["trials"]
    assert trial["gradient"] == pytest.approx(max(gradient), rel=1e-3, abs=1e-5)
    assert (trial["gradient"] > 1e-4, "stopped early" in said[0]) == (early, early)


def test_nearest_mean_answers_as_scikit_learn_at_the_best_temperature():
    found = nearest_mean(TRAIN, VAL, CLASSES)
    assert np.array_equal(found.head(VAL.features).argmax(1), NearestCentroid().fit(X, Y).predict(VAL.features.numpy()))
    distances = ((VAL.features.numpy()[:, None] - np.stack([X[y == Y].mean(0) for y in range(CLASSES)])) ** 2).sum(2)

    def loss(t):
        logits = torch.from_numpy(-0.5 * t * distances)
        return float(torch.nn.functional.cross_entropy(logits, VAL.labels))

    t = found.about["temperature"]
    assert loss(t) < min(loss(0.9 * t), loss(1.1 * t))
    own = torch.softmax(found.head(VAL.features), 1)
    assert own.numpy() == pytest.approx(torch.softmax(torch.from_numpy(-0.5 * t * distances), 1).numpy(), abs=1e-4)


def test_neighbours_vote_as_in_scikit_learn_whatever_the_block(monkeypatch):
    train = drawn(0, spread=3.0)
    logits = NearestNeighbours(train, CLASSES)(VAL.features)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (train.features.numpy(), VAL.features.numpy())]

    def votes(distances):  # ‖a − b‖² = 2 − 2 cos
        return np.exp((1 - distances**2 / 2) / 0.07)

    oracle = KNeighborsClassifier(20, weights=votes).fit(unit[0], Y)
    expected = (20 * oracle.predict_proba(unit[1]) + 1 / CLASSES) / 21
    assert torch.softmax(logits, 1).numpy() == pytest.approx(expected, abs=1e-3)
    monkeypatch.setattr(heads, "_BANK", 7)
    monkeypatch.setattr(heads, "_QUERIES", 11)
    assert NearestNeighbours(train, CLASSES)(VAL.features).numpy() == pytest.approx(logits.numpy(), abs=1e-4)


@pytest.mark.parametrize("fitting", [linear_probe, nearest_mean])
def test_a_class_without_samples_is_refused(fitting):
    with pytest.raises(DataError, match=r"a head for 4 classes .* found 3 classes and none of class 3"):
        fitting(TRAIN, VAL, 4)


def test_a_probe_of_separable_classes_has_converged_at_a_small_weight(monkeypatch):
    monkeypatch.setattr(heads, "LAMBDAS", (10.0, 1e-6))
    train, val = drawn(0, spread=0.2), drawn(1, spread=0.2)
    found = linear_probe(train, val, CLASSES).about["trials"][1]["cross_entropy"]
    x, y = train.features.numpy().astype(np.float64), train.labels.numpy()
    mean, scale = x.mean(0), np.sqrt(((x - x.mean(0)) ** 2).mean())
    oracle = LogisticRegression(C=1 / (len(x) * 1e-6), tol=1e-10, max_iter=100_000).fit((x - mean) / scale, y)
    p = oracle.predict_proba((val.features.numpy() - mean) / scale)[np.arange(len(val)), val.labels.numpy()]
    assert np.log(found) == pytest.approx(np.log(-np.log(p).mean()), abs=0.01)
