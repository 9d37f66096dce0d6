"""A network with further heads on its features: what several methods train and score with."""

from collections.abc import Mapping

from torch import Tensor, nn

from openbench.training.base import Surface, features_and_logits, head_of


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

    def surface(self) -> Surface:
        """What is evaluated: the network with its own head, and every branch as an output of its name."""
        return Surface(self, head_of(self.network), self.network, dict(self.branches.items()))
