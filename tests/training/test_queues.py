"""Queues of the last features of every class against plain Python lists."""

from collections import deque

import torch

from openbench.training.parts.queues import full, remember

LENGTH = 3


def test_a_batch_longer_than_the_queue_leaves_its_last_features_in_order():
    queue, seen = torch.zeros(1, LENGTH, 1), torch.zeros(1, dtype=torch.int64)
    remember(queue, seen, torch.arange(1.0, 6.0)[:, None], torch.zeros(5, dtype=torch.int64))
    assert queue.flatten().tolist() == [3, 4, 5]
    remember(queue, seen, torch.tensor([[6.0]]), torch.tensor([0]))
    assert queue.flatten().tolist() == [6, 4, 5]  # in place of the oldest


def test_queues_hold_the_last_features_of_their_class():
    generator = torch.Generator().manual_seed(0)
    queue, seen = torch.zeros(4, LENGTH, 2), torch.zeros(4, dtype=torch.int64)
    expected = [deque(maxlen=LENGTH) for _ in range(4)]
    for step in range(30):
        n = int(torch.randint(1, 12, (), generator=generator))
        labels, features = torch.randint(0, 3, (n,), generator=generator), torch.randn(n, 2, generator=generator)
        remember(queue, seen, features, labels)
        for feature, label in zip(features.tolist(), labels.tolist(), strict=True):
            expected[label].append(feature)
        for k in range(3):
            rows = queue[k, : min(LENGTH, int(seen[k]))].tolist()
            assert sorted(rows) == sorted(expected[k]), step
        assert not full(queue, seen)  # class 3 has none
    assert full(queue[:3], seen[:3])
