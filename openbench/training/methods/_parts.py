"""What several training methods add to a network."""

from typing import Final

import torch
from torch import Tensor, nn

from openbench.training.base import EvalModel, features_and_logits, head_of, with_head

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

    @property
    def classifier(self) -> nn.Linear:
        """The network's own."""
        return head_of(self.network)

    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the network's features (n, d) and logits (n, c) of images (n, channels, h, w)."""
        return features_and_logits(self.network, images)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        return self.network(images)

    def with_head(self, weight: Tensor, bias: Tensor) -> EvalModel:
        """Return the network to evaluate, with another classifier (c, d), (c,)."""
        return with_head(self.network, weight, bias)

    def evaluated(self, *outputs: str, head: nn.Linear | None = None) -> EvalModel:
        """Return this module to evaluate, with the outputs of some parts as layers, named by the last part of a path.

        Args:
            *outputs: paths of parts, whose outputs are read by hooks, as those of stages are.
            head: the classifier; None: the network's own.
        """
        parts = {path.rpartition(".")[2]: self.get_submodule(path) for path in outputs}
        return EvalModel(self.eval(), head or self.classifier, self.network, parts)


class Branched(Extended):
    """Runs the network, then a branch on its features; returns the network's own logits.

    Args:
        network: the backbone's network.
        name: of the branch.
        branch: from features (n, d) to (n, k).
        **parts: see `Extended`.
    """

    branches: nn.ModuleDict

    def __init__(self, network: nn.Module, name: str, branch: nn.Module, **parts: Tensor) -> None:
        super().__init__(network, branches=nn.ModuleDict({name: branch}), **parts)
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        features, logits = self.read(images)
        self.branches[self.name](features)
        return logits


class ReadLogits(Extended):
    """A network, and a part from logits (n, c) to (n, k)."""

    def __init__(self, network: nn.Module, name: str, part: nn.Module) -> None:
        super().__init__(network, **{name: part})
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        logits = self.network(images)
        self.get_submodule(self.name)(logits)
        return logits


class Turned(Extended):
    """The network, a head for images that are turned, and the part `output`, which sees its logits in eval mode."""

    def __init__(self, network: nn.Module, head: str, width: int, feature_dim: int, output: str) -> None:
        super().__init__(network, **{head: nn.Linear(feature_dim, width), output: nn.Identity()})
        self.head, self.output = head, output

    def of_turned(self, features: Tensor) -> Tensor:
        """Return the head's logits (n, k) of features (n, d)."""
        logits: Tensor = self.get_submodule(self.head)(features)
        return logits

    def combined(self, logits: list[Tensor]) -> Tensor:
        """Return what `output` sees of the logits (n, k) of each turn: all side by side."""
        return torch.cat(logits, dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, s, s) to class logits (n, c)."""
        if not self.training:
            turns = rotated(images).chunk(ROTATIONS)
            logits = [self.of_turned(self.read(turn)[0]) for turn in turns]
            self.get_submodule(self.output)(self.combined(logits))
        # Last, and in a separate pass: hooks on the network then read the unrotated images.
        return self.network(images)


def rotated(images: Tensor) -> Tensor:
    """Return images (n, channels, s, s) turned by 0, 90, 180 and 270 degrees, (4n, channels, s, s), turn by turn."""
    return torch.cat([torch.rot90(images, turns, (2, 3)) for turns in range(ROTATIONS)])


def rotated_labels(labels: Tensor, classes: int) -> Tensor:
    """Return the labels (4n,) of the turned images of (n,), where a turned class is a separate class."""
    return torch.cat([labels + classes * turns for turns in range(ROTATIONS)])


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (m, c) against equal shares of all classes: −(1/c) Σ_k log p_k."""
    return (logits.logsumexp(dim=1) - logits.mean(dim=1)).mean()
