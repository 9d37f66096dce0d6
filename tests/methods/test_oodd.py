import heapq

import numpy as np
import pytest
import torch
from scipy.special import softmax

from openbench.methods import neighbours
from openbench.methods.neighbours import OODD

from .problems import KINDS, assert_equal, f, given, problem, unit, y, z


def by_queue(data, method: OODD) -> np.ndarray:
    """One image after the other, with Python's priority queue, as the paper's algorithm reads."""
    confidence, labels = softmax(z(data.train), axis=1).max(axis=1), y(data.train)
    of_class = [sorted(np.flatnonzero(labels == c), key=lambda i: -confidence[i]) for c in range(labels.max() + 1)]
    longest = max(map(len, of_class))
    order = [rows[turn] for turn in range(longest) for rows in of_class if turn < len(rows)]
    bank = unit(f(data.train))[order[: int(method.share * len(order))]]
    queue: list[tuple[float, int]] = []
    images, result = unit(f(data.test)), []
    for i, image in enumerate(images):
        similarity = np.sort(bank @ image)[-method.k1]
        heapq.heappush(queue, (-similarity, -i))
        if len(queue) > method.queue:
            heapq.heappop(queue)  # the most similar to ID; of equals the latest
        near = np.sort([images[-j] @ image for _, j in queue])[::-1]
        result.append(near[: method.k2][-1] - similarity)
    return np.array(result)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dead"])
@pytest.mark.parametrize("method", [OODD(), OODD(k1=3, k2=2, share=0.7, queue=20)], ids=["default", "small"])
def test_equals_one_image_after_the_other(kind, method, monkeypatch):
    data = problem(kind, n=300)
    monkeypatch.setattr(neighbours, "_BLOCK", 64)
    fitted = method.fit(data.train, None)
    memory = fitted.memory()
    found = torch.cat([fitted.score_next(rows, memory) for rows in data.test.without_labels().batches(110)])
    assert_equal(found.numpy(), by_queue(data, method), rtol=2e-5)
    assert len(memory.features) == len(memory.similarity) == method.queue


def test_of_equally_similar_images_the_first_stays():
    """One direction in different lengths: every image is the same, so the dictionary keeps the first ones."""
    data = problem("signed")
    method = OODD(queue=2, k2=1).fit(data.train, None)
    memory = method.memory()
    same = given(features=torch.ones(1, 24), logits=data.test.logits[:1])
    first = [method.score_next(same, memory) for _ in range(4)]
    assert len(memory.features) == 2
    assert len({float(score) for score in first}) == 1
