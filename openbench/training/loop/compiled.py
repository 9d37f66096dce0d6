"""Compiling the parts of a network for the time of a training."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

from openbench.backbones.anatomy import last_linear


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
    for part in parts:
        part.forward = torch.compile(_own(part), options={"fallback_random": True})
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _own(part: nn.Module) -> MethodType:
    """A part's forward with its own code object, since torch keeps a limited number of compiled versions for each.

    Parts that share a code object, as all Sequentials do, would exceed the limit, and the last would not be compiled.
    """

    def forward(self: nn.Module, *arguments: Any) -> Any:
        return type(self).forward(self, *arguments)

    forward.__code__ = forward.__code__.replace()
    return MethodType(forward, part)
