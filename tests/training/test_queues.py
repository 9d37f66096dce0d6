"""Queues of the last features of every class against plain Python lists."""

from collections import deque

import torch

from openbench.training.parts._shared import Queued

LENGTH = 3


def queues(num_classes: int, feature_dim: int) -> Queued:
    queued = Queued()
    queued.add_queues(num_classes, LENGTH, feature_dim)
    return queued


def test_a_batch_longer_than_the_queue_leaves_its_last_features_in_order():
    queued = queues(1, 1)
    queued.remember(torch.arange(1.0, 6.0)[:, None], torch.zeros(5, dtype=torch.int64))
    assert queued.queue.flatten().tolist() == [3, 4, 5]
    queued.remember(torch.tensor([[6.0]]), torch.tensor([0]))
    assert queued.queue.flatten().tolist() == [6, 4, 5]  # in place of the oldest


def test_queues_hold_the_last_features_of_their_class():
    generator = torch.Generator().manual_seed(0)
    queued = queues(4, 2)
    expected = [deque(maxlen=LENGTH) for _ in range(4)]
    for step in range(30):
        n = int(torch.randint(1, 12, (), generator=generator))
        labels, features = torch.randint(0, 3, (n,), generator=generator), torch.randn(n, 2, generator=generator)
        queued.remember(features, labels)
        for feature, label in zip(features.tolist(), labels.tolist(), strict=True):
            expected[label].append(feature)
        for k in range(3):
            rows = queued.queue[k, : min(LENGTH, int(queued.seen[k]))].tolist()
            assert sorted(rows) == sorted(expected[k]), step
        assert not queued.full()  # class 3 has none
    queued.remember(torch.zeros(LENGTH, 2), torch.full((LENGTH,), 3))
    assert queued.full()
