"""The last features of every class, in ring buffers (c, length, d)."""

import torch
from torch import Tensor


def remember(queue: Tensor, seen: Tensor, features: Tensor, labels: Tensor) -> None:
    """Put features into their classes' queues, in place of the oldest.

    Args:
        queue: (c, length, d), changed in place.
        seen: (c,) int64, features that each class has had so far, changed in place.
        features: (n, d).
        labels: (n,).
    """
    length = queue.shape[1]
    for k in sorted(set(labels.tolist())):
        own = features[labels == k][-length:]
        places = (seen[k] + torch.arange(len(own), device=own.device)) % length
        queue[k, places] = own.to(queue.dtype)
        seen[k] += len(own)


def full(queue: Tensor, seen: Tensor) -> bool:
    """Whether the queue of every class is full."""
    return bool((seen >= queue.shape[1]).all())
