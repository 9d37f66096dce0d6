from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from openbench.core.request import Role
from openbench.data.sources.base import ArrayItems
from openbench.training.base import Batch, TrainingData
from openbench.training.methods import outliers as udg
from openbench.training.methods.outliers import UDG, balancing, k_means, pure_labels, whitened

from .training_toys import CLASSES, array, draws, features, image_set, info, model_of, sets, split

METHOD = UDG(outlier_weight=0.7, group_weight=0.3, groups=5, outliers_per_step=6)
N, M = 9, 6


def test_whitened_features_are_those_of_principal_component_analysis() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8)) @ rng.normal(size=(8, 8)) + 3
    for dims in (1, 5, 8):
        expected = PCA(dims, whiten=True, svd_solver="full").fit_transform(x)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        found = whitened(torch.from_numpy(x), dims).numpy()
        # Products of rows do not see the signs of directions.
        np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=2e-5)


def test_directions_without_variance_are_left_out() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(50, 2)) @ rng.normal(size=(2, 6)))
    assert whitened(torch.cat([x, torch.ones(50, 3)], dim=1), 6).shape == (50, 2)
    assert torch.isfinite(whitened(torch.ones(50, 3), 2)).all()


def test_k_means_finds_planted_groups_and_sums_of_squares_like_another_implementation() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 300)
    points = 10 * np.eye(6)[truth] + rng.normal(size=(1800, 6))
    assert adjusted_rand_score(truth, k_means(torch.from_numpy(points), 6, seed=1).numpy()) == 1.0
    spread = rng.normal(size=(2000, 5))

    def inertia(groups: np.ndarray) -> float:
        return sum(((part - part.mean(axis=0)) ** 2).sum() for part in (spread[groups == g] for g in set(groups)))

    theirs = KMeans(20, n_init=1, max_iter=20, random_state=0).fit(spread).inertia_
    # 300 points per group, more than faiss would look at by default.
    assert inertia(k_means(torch.from_numpy(spread), 20, seed=0).numpy()) == pytest.approx(theirs, rel=0.04)


@pytest.mark.parametrize("purity", [0.5, 0.8, 1.0])
def test_pure_labels_are_those_of_a_majority_counted_by_hand(purity: float) -> None:
    rng = np.random.default_rng(0)
    groups, lent = rng.integers(0, 30, 400), 0
    labels = np.where(rng.random(400) < 0.75, groups % 4 - 1, rng.integers(-1, 4, 400))
    found = pure_labels(torch.from_numpy(groups), torch.from_numpy(labels), purity).numpy()
    for g in set(groups):
        label, most = Counter(labels[groups == g].tolist()).most_common(1)[0]
        expected = label if most > purity * (groups == g).sum() else -1
        assert set(found[groups == g]) == {expected}
        lent += expected >= 0
    assert (lent > 0) == (purity < 1)


def test_a_share_that_just_equals_the_threshold_is_not_enough() -> None:
    assert pure_labels(torch.zeros(10).long(), torch.tensor([2] * 8 + [-1] * 2), 0.8).tolist() == [-1] * 10
    assert pure_labels(torch.zeros(10).long(), torch.tensor([2] * 9 + [-1]), 0.8).tolist() == [2] * 10


def test_weights_are_inverse_roots_of_sizes_with_mean_one_over_groups_that_have_members() -> None:
    groups = np.array([0] * 9 + [3] * 4 + [4] * 1)
    roots = {0: 1 / 3, 3: 1 / 2, 4: 1.0}
    mean = sum(roots.values()) / 3
    np.testing.assert_allclose(balancing(torch.from_numpy(groups)).numpy(), [roots[g] / mean for g in groups])


@pytest.mark.parametrize("lent", [[-1, 2, -1, 0, -1, -1], [-1] * 6, [1] * 6])
def test_loss_equals_the_formula(lent: list[int]) -> None:
    images, outliers = torch.randn(N + M, 3, 8, 8, generator=draws(0)).split((N, M))
    model, rows, out_rows = model_of(METHOD), torch.arange(N) + 3, torch.tensor([5, 0, 3, 2, 1, 4])
    model.lent.labels = torch.tensor(lent)
    model.lent.groups = torch.cat([torch.arange(20) % 5, torch.arange(M) % 4])
    model.lent.weights = torch.cat([torch.linspace(0.5, 2, 20), torch.linspace(3, 1, M)])
    y, out = torch.arange(N) % CLASSES, np.array(lent)[out_rows]
    f, g = features(model.network, images), features(model.network, outliers)
    weight, bias = map(array, (model.network.fc.weight, model.network.fc.bias))
    z, z_out = f @ weight.T + bias, g @ weight.T + bias
    true = [(row, int(label)) for row, label in zip(z, y, strict=True)]
    true += [(row, label) for row, label in zip(z_out, out, strict=True) if label >= 0]
    expected = np.mean([-log_softmax(row)[label] for row, label in true])
    flat = [logsumexp(row) - row.mean() for row, label in zip(z_out, out, strict=True) if label < 0]
    expected += 0.7 * (np.mean(flat) if flat else 0.0)
    told = np.concatenate([f, g]) @ array(model.tell.weight).T + array(model.tell.bias)
    group = np.concatenate([np.arange(20)[rows] % 5, np.arange(M)[out_rows] % 4])
    w = np.concatenate([np.linspace(0.5, 2, 20)[rows], np.linspace(3, 1, M)[out_rows]])
    expected += 0.3 * np.mean(w * -log_softmax(told, axis=1)[np.arange(N + M), group])
    given = Batch(images, y, rows, info(), outliers, out_rows)
    assert float(METHOD.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)


def test_outliers_that_look_like_a_class_are_lent_it_and_others_are_not() -> None:
    data = sets()
    reds = data.train.labels == 0
    disguised = torch.cat([data.train.pixels[reds][:3], data.outliers.pixels[:21]])
    mixed = image_set(replace(split(Role.OOD_TRAIN, 24), items=ArrayItems(disguised.numpy(), np.arange(24))))
    model = model_of(METHOD)
    method = replace(METHOD, groups=1000, dims=3, purity=0.6)
    method.on_epoch_start(model, info(0), TrainingData(data.train, mixed))
    assert model.lent.labels[:3].tolist() == [0] * 3
    assert (model.lent.labels[3:] == -1).float().mean() > 0.8
    # 94 images make 9 groups.
    assert int(model.lent.groups.max()) <= 8


def test_last_epochs_loans_count_in_the_purity_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = sets(), model_of(METHOD)
    one = int(data.train.labels[0])
    groups = torch.ones(94, dtype=torch.int64)
    groups[[0, 70, 71, 72]] = 0
    monkeypatch.setattr(udg, "k_means", lambda *_: groups)
    METHOD.on_epoch_start(model, info(0), data)
    assert model.lent.labels[:3].tolist() == [-1] * 3
    model.lent.labels[:2] = one
    METHOD.on_epoch_start(model, info(1), data)
    assert model.lent.labels[:3].tolist() == [-1] * 3  # three of four: 0.75
    model.lent.labels[:3] = one
    METHOD.on_epoch_start(model, info(1), data)
    assert model.lent.labels[:3].tolist() == [one] * 3
    METHOD.on_epoch_start(model, info(0), data)
    assert model.lent.labels[:3].tolist() == [-1] * 3


def test_the_head_of_the_groups_begins_anew_in_every_epoch() -> None:
    data, model = sets(), model_of(METHOD)
    seen = []
    for epoch in (0, 1):
        model.tell.weight.data.fill_(5)
        model.tell.bias.data.fill_(5)
        METHOD.on_epoch_start(model, info(epoch, seed=epoch), data)
        seen.append(model.tell.weight.detach().clone())
        assert not model.tell.bias.any()
        assert float(seen[-1].std()) == pytest.approx(0.01, rel=0.3)
    assert not torch.equal(*seen)
