"""What several training methods add to a network."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from openbench.training.base import EvalModel, features_and_logits, head_of

ROTATIONS: Final = 4


class Extended(nn.Module):
    """The network, and what a method adds to it.

    Args:
        network: the backbone's network.
        **parts: layers and parameters, which are trained, and other tensors, which become buffers.
    """

    def __init__(self, network: nn.Module, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.network = network
        self.add(**parts)

    def add(self, **parts: nn.Module | Tensor) -> None:
        """Add further parts."""
        for name, part in parts.items():
            if isinstance(part, nn.Module | nn.Parameter):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        return self.network(images)


class Branched(Extended):
    """Runs the network, then every branch on its features; returns the network's own logits.

    Args:
        network: the backbone's network.
        branches: name → module from features (n, d) to (n, k).
        **parts: see `Extended`.
    """

    branches: nn.ModuleDict

    def __init__(self, network: nn.Module, branches: Mapping[str, nn.Module], **parts: Tensor) -> None:
        super().__init__(network, branches=nn.ModuleDict(dict(branches)), **parts)

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


class ReadLogits(Extended):
    """A network, and a part from logits (n, c) to (n, k), whose output hooks read as they do that of stages."""

    def __init__(self, network: nn.Module, name: str, part: nn.Module) -> None:
        super().__init__(network, **{name: part})
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        logits = self.network(images)
        self.get_submodule(self.name)(logits)
        return logits

    def eval_model(self, head: nn.Linear, network: nn.Module) -> EvalModel:
        """Return this module to evaluate, in eval mode, with the part as an output of its name."""
        return EvalModel(self.eval(), head, network, {self.name: self.get_submodule(self.name)})


def rotated(images: Tensor) -> Tensor:
    """Return images (n, channels, s, s) turned by 0, 90, 180 and 270 degrees, (4n, channels, s, s), turn by turn."""
    return torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(ROTATIONS)])


def rotated_labels(labels: Tensor, classes: int) -> Tensor:
    """Return the labels (4n,) of the turned images of (n,), where a turned class is a separate class."""
    return torch.cat([labels + classes * turns for turns in range(ROTATIONS)])


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (m, c) against equal shares of all classes: −(1/c) Σ_k log p_k."""
    return (logits.logsumexp(dim=1) - logits.mean(dim=1)).mean()
