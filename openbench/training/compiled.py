"""Compiling the parts of a network for the time of a training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from openbench.backbones.anatomy import last_linear


@contextmanager
def compiled(network: nn.Module) -> Iterator[None]:
    """Let `torch.compile` speed up the network's stages while the body runs.

    Each child is compiled by itself, apart from what holds the classifier: methods read features by hooks at the
    classifier, which a compiled whole would pass over. Random numbers stay those of the uncompiled network; sums are
    fused and round otherwise.

    Args:
        network: the backbone's own module; afterwards it is as before, its weights aside.
    """
    head = last_linear(network)
    parts = [part for name, part in network.named_children() if not (head == name or head.startswith(f"{name}."))]
    parts = [part for part in parts if any(True for _ in part.parameters())]
    for part in parts:
        part.forward = torch.compile(part.forward, options={"fallback_random": True})
    try:
        yield
    finally:
        for part in parts:
            del part.forward
