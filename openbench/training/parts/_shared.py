"""Parts of several methods: further heads, queues of features, and losses on outliers."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from openbench.training.base import Batch, EvalModel, features_and_logits, head_of


class Branched(nn.Module):
    """Runs the network, then every branch on its features; returns the network's own logits.

    Args:
        network: the backbone's network.
        branches: name → module from features (n, d) to (n, k).
    """

    def __init__(self, network: nn.Module, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.network = network
        self.branches = nn.ModuleDict(dict(branches))

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        features, logits = features_and_logits(self.network, images)
        # Their outputs are read by hooks, as those of stages are.
        for branch in self.branches.values():
            branch(features)
        return logits

    def eval_model(self) -> EvalModel:
        """Return the network with its own head, and every branch as an output of its name."""
        return EvalModel(self, head_of(self.network), self.network, dict(self.branches.items()))


class ReadLogits(nn.Module):
    """A network, and a part on its logits; hooks read that part's output as they do that of stages.

    Args:
        network: images (n, channels, h, w) to logits (n, c).
        name: of the part among the module's children.
        part: logits (n, c) to (n, k).
    """

    def __init__(self, network: nn.Module, name: str, part: nn.Module) -> None:
        super().__init__()
        self.network, self.name = network, name
        self.add_module(name, part)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        logits = self.network(images)
        self.get_submodule(self.name)(logits)
        return logits

    def eval_model(self, head: nn.Linear, network: nn.Module) -> EvalModel:
        """Return this module to evaluate, in eval mode, with the part as an output of its name."""
        return EvalModel(self.eval(), head, network, {self.name: self.get_submodule(self.name)})


class Queued(nn.Module):
    """A module that holds the last features of every class, in ring buffers.

    Attributes:
        queue: (c, length, d).
        seen: (c,) int64, features that each class has had so far.
    """

    queue: Tensor
    seen: Tensor

    def add_queues(self, num_classes: int, length: int, feature_dim: int) -> None:
        """Make the buffers, empty."""
        self.register_buffer("queue", torch.zeros(num_classes, length, feature_dim))
        self.register_buffer("seen", torch.zeros(num_classes, dtype=torch.int64))

    def full(self) -> bool:
        """Whether the queue of every class is full."""
        return bool((self.seen >= self.queue.shape[1]).all())

    def remember(self, features: Tensor, labels: Tensor) -> None:
        """Put features (n, d) into their classes' queues, in place of the oldest."""
        length = self.queue.shape[1]
        for k in sorted(set(labels.tolist())):
            latest = features[labels == k][-length:]
            places = (self.seen[k] + torch.arange(len(latest), device=latest.device)) % length
            self.queue[k, places] = latest.to(self.queue.dtype)
            self.seen[k] += len(latest)


def outliers_of(batch: Batch) -> Tensor:
    """Return the outliers (m, channels, h, w) of a batch.

    Raises:
        TypeError: there are none; the loop gives them to methods with `uses_outliers`.
    """
    if batch.outliers is None:
        raise TypeError("the loss needs Batch.outliers — the method must declare uses_outliers = True")
    return batch.outliers


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (m, c) against equal shares of all classes: −(1/c) Σ_k log p_k."""
    return (logits.logsumexp(dim=1) - logits.mean(dim=1)).mean()
