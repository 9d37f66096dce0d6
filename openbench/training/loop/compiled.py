"""Compiling the parts of a network for the time of a training."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from openbench.backbones.anatomy import last_linear
from openbench.backbones.compiling import compiled_parts, installed


@contextmanager
def compiled(network: nn.Module) -> Iterator[None]:
    """Let `torch.compile` speed up the network's stages while the body runs.

    Each child is compiled separately, except the one that holds the classifier: methods read features by hooks at the
    classifier, and a network compiled as a whole would skip them. Random numbers stay those of the uncompiled network;
    sums are fused, so they round differently.

    Args:
        network: the backbone's own module; afterwards it is as before, except for its weights.
    """
    head = last_linear(network)
    parts = [part for name, part in network.named_children() if not (head == name or head.startswith(f"{name}."))]
    parts = [part for part in parts if any(True for _ in part.parameters())]
    with installed(compiled_parts(parts, options={"fallback_random": True})):
        yield
