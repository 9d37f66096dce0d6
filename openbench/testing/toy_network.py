"""The planted problem as images: a network whose features, logits and maps of them are the planted ones."""

import math

import torch
from torch import Tensor, nn

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.network import NetworkBackbone
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.testing.toy import LAYERS

_SIDE = 2  # height and width of maps


class _Spread(nn.Module):
    """Pixels to maps (n, d, 2, 2) whose mean over positions is the first d pixels."""

    texture: Tensor

    def __init__(self, d: int) -> None:
        super().__init__()
        texture = 0.5 + torch.rand(d, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
        self.register_buffer("texture", texture / texture.mean(dim=(1, 2), keepdim=True))

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, : len(self.texture), None, None] * self.texture


class _ToyNetwork(nn.Module):
    def __init__(self, head: Head) -> None:
        super().__init__()
        classes, d = head.weight.shape
        for name in LAYERS:
            self.add_module(name, _Spread(d) if name == LAYERS[0] else nn.Identity())
        self.fc = nn.Linear(d, classes)
        with torch.no_grad():
            self.fc.weight.copy_(head.weight)
            self.fc.bias.copy_(head.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = images
        for name in LAYERS:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def network_with(head: Head) -> NetworkBackbone:
    """Return a network that reads features off its images, and has stages `stage1` … `stage4` and a head.

    Args:
        head: weight (c, d) and bias (c,).
    """
    side = _side(head.weight.shape[1])
    backbone = NetworkBackbone(
        "toy",
        "toy network",
        lambda: _ToyNetwork(head),
        lambda _: Anatomy("fc", {name: name for name in LAYERS}),
        preprocess=Preprocess(side, side, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    )
    return backbone.load_state(backbone.module().state_dict(), "the planted head")


def images_with(features: Tensor) -> Tensor:
    """Return images (n, 3, side, side) of which the network finds the features (n, d)."""
    n, d = features.shape
    side = _side(d)
    images = features.new_zeros(n, 3 * side * side)
    images[:, :d] = features
    return images.view(n, 3, side, side)


def _side(d: int) -> int:
    return math.ceil(math.sqrt(d / 3))
