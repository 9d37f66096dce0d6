from dataclasses import replace

import faiss
import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax
from sklearn.neighbors import NearestNeighbors
from torch.nn import functional

from openbench.training.base import Batch, TrainingData, features_and_logits
from openbench.training.methods.virtual_outliers import NPOS, WithBoundary, remoteness

from . import training_toys
from .training_toys import CLASSES, FEATURES, array, info, model_of

METHOD = NPOS(queue=20, k=5, select=8, pick=3, sample_from=15, keep_farthest=4, sigma=0.3, weight=0.7, width=6)


def batch(epoch: int = 9) -> Batch:
    return training_toys.batch(torch.arange(12) % CLASSES, epoch)


def queues(seed: int = 1, length: int = 20, d: int = FEATURES) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(CLASSES, length, d, generator=generator) + torch.eye(CLASSES, d)[:, None]


def filled(method: NPOS = METHOD) -> WithBoundary:
    model = model_of(method)
    for buffer in (model.prototypes, model.directions):
        buffer.copy_(functional.normalize(torch.randn(buffer.shape), dim=1))
    model.queue.copy_(queues())
    model.seen.fill_(method.queue)
    return model


def test_remoteness_orders_as_the_distance_to_the_kth_neighbour_on_the_sphere() -> None:
    rng = np.random.default_rng(0)
    q, bank = rng.normal(size=(40, 6)), rng.normal(size=(30, 6))
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (q, bank)]
    for k in (1, 7, 30):
        expected = NearestNeighbors(n_neighbors=k).fit(unit[1]).kneighbors(unit[0])[0][:, -1]
        found = remoteness(torch.from_numpy(q), torch.from_numpy(bank), k).numpy()
        np.testing.assert_allclose(np.sqrt(2 * found), expected, rtol=1e-9)


def test_vectors_without_direction_are_far_from_all_and_near_to_none() -> None:
    bank = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert remoteness(bank, bank, 1).tolist() == [0, 0, float("inf")]
    assert remoteness(bank[:2], bank, 2).tolist() == [1, 1]
    assert remoteness(bank[:2], bank, 3).tolist() == [float("inf")] * 2


def kth(queries: np.ndarray, bank: np.ndarray, k: int) -> np.ndarray:
    """The k-th nearest squared distance by faiss' exact index, as the authors search."""
    index = faiss.IndexFlatL2(bank.shape[1])
    index.add(bank / np.linalg.norm(bank, axis=1, keepdims=True))
    return index.search(queries / np.linalg.norm(queries, axis=1, keepdims=True), k)[0][:, -1]


def synthesised(queue: np.ndarray, compat: str) -> np.ndarray:
    """Outliers as published, one class and one boundary feature after the other, from the same draws."""
    generator = info().generator
    noise = torch.randn(METHOD.sample_from, queue.shape[2], generator=generator).numpy()
    found = []
    for own in queue:
        boundary = np.argsort(-kth(own, own, METHOD.k), kind="stable")[: METHOD.select]
        chosen = boundary[torch.randperm(METHOD.select, generator=generator).numpy()[: METHOD.pick]]
        points = np.concatenate([own[i] + np.float32(METHOD.sigma) * noise for i in chosen])
        distance = kth(points, own, METHOD.k)
        for j in range(METHOD.pick):
            block = slice(j * METHOD.sample_from, (j + 1) * METHOD.sample_from)
            # The authors lay the distances out with `view(sample_from, pick)` and read column j for block j.
            told = distance[block] if compat == "paper" else distance.reshape(METHOD.sample_from, METHOD.pick)[:, j]
            found.append(points[block][np.argsort(-told, kind="stable")[: METHOD.keep_farthest]])
    return np.concatenate(found)


@pytest.mark.parametrize("compat", ["paper", "openood"])
def test_outliers_are_those_of_a_search_with_faiss(compat: str) -> None:
    method, queue = replace(METHOD, compat=compat), queues()
    found = method.outliers(queue, info().generator).numpy()
    np.testing.assert_allclose(found, synthesised(queue.numpy(), compat), atol=1e-6)
    assert found.shape == (CLASSES * 3 * 4, FEATURES)


@pytest.mark.parametrize("compat", ["paper", "openood"])
def test_loss_equals_the_formula(compat: str) -> None:
    method = replace(METHOD, compat=compat, compactness=1.3, dispersion=0.4, temperature=0.2, keep=0.6)
    model, given = filled(method), batch()
    y = given.labels.numpy()
    f = array(features_and_logits(model.network, given.images)[0])
    h = array(model.project(torch.from_numpy(f).float()))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    p = array(model.prototypes)
    for hi, yi in zip(h, y, strict=True):
        p[yi] = (0.6 * p[yi] + 0.4 * hi) / np.linalg.norm(0.6 * p[yi] + 0.4 * hi)
    compact = -0.2 / 0.07 * log_softmax(h @ p.T / 0.2, axis=1)[np.arange(12), y].mean()
    disperse = [np.log(np.mean([np.exp(p[i] @ p[j] / 0.2) for j in range(CLASSES) if j != i])) for i in range(CLASSES)]
    copy = model.queue.clone()
    for fi, yi in zip(f, y, strict=True):
        # The oldest is written over first: four features of each class came in.
        place = int(np.count_nonzero((copy[yi] != model.queue[yi]).any(dim=1)))
        copy[yi, place] = torch.from_numpy(fi)
    out = array(method.outliers(copy, info().generator))
    first, _, last = model.decide
    w1, b1, w2, b2 = map(array, (first.weight, first.bias, last.weight, last.bias))
    phi_in, phi_out = (np.maximum(x @ w1.T + b1, 0) @ w2[0] + b2[0] for x in (f, out))
    terms = np.concatenate([-np.log(expit(phi_in)), -np.log(1 - expit(phi_out))])
    expected = 1.3 * compact + 0.4 * np.mean(disperse) + 0.7 * terms.mean()
    assert float(method.loss(model, given).detach()) == pytest.approx(expected, rel=2e-5)
    np.testing.assert_allclose(model.prototypes.numpy(), p, atol=1e-5)
    torch.testing.assert_close(model.queue, copy)


@pytest.mark.parametrize(("epoch", "seen", "drawn"), [(3, 20, False), (4, 20, True), (9, 15, False), (9, 16, True)])
def test_outliers_begin_after_the_share_of_epochs_and_with_full_queues(epoch, seen, drawn) -> None:
    model = filled()
    model.seen.fill_(seen)  # the batch has four of each class
    given = batch(epoch)
    state = given.info.generator.get_state()
    METHOD.loss(model, given)
    assert torch.equal(given.info.generator.get_state(), state) == (not drawn)


@pytest.mark.parametrize(("compat", "left"), [("paper", True), ("openood", False)])
def test_queues_live_through_epochs_except_in_the_published_form_where_they_still_count_as_full(compat, left) -> None:
    method = replace(METHOD, compat=compat)
    model = filled(method)
    method.on_epoch_start(model, info(5), TrainingData(None, None))
    assert bool(model.queue.any()) == left
    assert model.full()
    assert torch.isfinite(method.loss(model, batch()))
