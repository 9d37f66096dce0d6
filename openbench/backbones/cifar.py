"""ResNets for small images: the 3×3-stem ResNet-18 of OpenOOD, He et al.'s ResNet-20/32/44/56, and a tiny ResNet-8."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.anatomy import Anatomy
from openbench.backbones.base import Precision
from openbench.backbones.checkpoints import find_weights
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count, OneOf
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError


@dataclass(frozen=True)
class ResNetSpec:
    """The shape of a CIFAR-style ResNet.

    Args:
        widths: channels per stage; every stage but the first halves the resolution.
        blocks: basic blocks per stage.
        shortcut: where a block changes shape, `projection` (1×1 convolution and batch norm) or `subsample` (every
            second pixel, new channels are zero: no parameters, option A of He et al.).
    """

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    shortcut: Literal["projection", "subsample"]


SPECS: Mapping[str, ResNetSpec] = {
    "resnet18": ResNetSpec((64, 128, 256, 512), (2, 2, 2, 2), "projection"),
    # He et al.: n blocks in each of three stages are 6n + 2 layers.
    **{f"resnet{6 * n + 2}": ResNetSpec((16, 32, 64), (n, n, n), "subsample") for n in (1, 3, 5, 7, 9)},
}


class Subsample(nn.Module):
    """Option-A shortcut: every second pixel; the channels that are new hold zeros, half before and half after."""

    def __init__(self, added: int, stride: int) -> None:
        super().__init__()
        self.before, self.after, self.stride = added // 2, added - added // 2, stride

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) to (n, c + added, ⌈h/stride⌉, ⌈w/stride⌉)."""
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to the shortcut, then ReLU."""

    def __init__(self, inputs: int, width: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Sequential()
        if stride != 1 or inputs != width:
            projection = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            self.shortcut = projection if shortcut == "projection" else Subsample(width - inputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, width, h/stride, w/stride)."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """3×3 stem without pooling, stages of basic blocks, global average pool, linear classifier.

    State-dict keys: conv1, bn1, layer{k}.{i}.{conv1,bn1,conv2,bn2,shortcut.0,shortcut.1}, fc.

    Reference:
        He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016, arXiv:1512.03385, section 4.2.
        The four-stage projection form is OpenOOD's `ResNet18_32x32`.
    """

    def __init__(self, spec: ResNetSpec, num_classes: int, channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, spec.widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(spec.widths[0])
        self.stages: list[str] = []
        inputs = spec.widths[0]
        for k, (width, count) in enumerate(zip(spec.widths, spec.blocks, strict=True), start=1):
            blocks = []
            for i in range(count):
                stride = 2 if i == 0 and k > 1 else 1
                blocks.append(BasicBlock(inputs, width, stride, spec.shortcut))
                inputs = width
            self.add_module(f"layer{k}", nn.Sequential(*blocks))
            self.stages.append(f"layer{k}")
        self.fc = nn.Linear(inputs, num_classes)
        if spec.shortcut == "subsample":
            # He et al. draw from N(0, 2/fan_in); OpenOOD's ResNet-18 keeps torch's defaults.
            for part in self.modules():
                if isinstance(part, nn.Conv2d | nn.Linear):
                    nn.init.kaiming_normal_(part.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return self.fc(x.mean(dim=(2, 3)))


def renamed(key: str) -> str:
    """Return our name of a weight: He-style nets end in `linear`, torchvision-like ones have `downsample`."""
    return re.sub(r"\.downsample\.", ".shortcut.", re.sub(r"^linear\.", "fc.", key))


def resnet(
    name: str,
    model: Annotated[str, OneOf(tuple(SPECS))],
    *,
    weights: str | None = None,
    sha256: str | None = None,
    num_classes: Count | None = None,
    preprocess: Preprocess | None = None,
    precision: Precision = "fp32",
) -> NetworkBackbone:
    """Return a CIFAR-style ResNet backbone; without weights it waits to be trained on the benchmark.

    Args:
        name: what users type after `backbone=`.
        model: a key of `SPECS`.
        weights: file of released weights, searched in the data roots; None = none.
        sha256: the hash that this file must have.
        num_classes: c; the benchmark's where the yaml leaves it null.
        preprocess: the benchmark's where the yaml leaves it null.
        precision: see NetworkBackbone.

    Raises:
        ConfigError: no number of classes or preprocessing given.
        CheckpointError: weights that are missing or do not fit.
    """
    if num_classes is None or preprocess is None:
        raise ConfigError(f"backbone '{name}': num_classes or preprocess is null — give both, or a benchmark")
    backbone = NetworkBackbone(
        name,
        f"cifar {model}, {num_classes} classes, {preprocess.channels} channels",
        partial(CifarResNet, SPECS[model], num_classes, preprocess.channels),
        lambda module: Anatomy("fc", {f"stage{k}": s for k, s in enumerate(module.stages, start=1)}),  # type: ignore[arg-type]
        preprocess=preprocess,
        precision=precision,
        rename=renamed,
    )
    return backbone if weights is None else backbone.load(find_weights(weights), sha256)
