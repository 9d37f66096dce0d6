"""What the first images tell: outputs that are not finite or are probabilities, pixels in an unusual range."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from openbench.backbones.base import Backbone
from openbench.backbones.network import evaluating
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.data.loading import batches
from openbench.engine.probe import FEW, some_of
from openbench.errors import ConfigError

_LARGEST = 30.0  # of normalised pixels: 0 to 1 becomes about −3 to 3, 0 to 255 does not
_FAR = 4.0  # standard deviations of a channel, over all images that the network learnt from
_PROBABILITY = 1e-3


class Audience(Protocol):
    """The part of a benchmark that a model is adopted for: its classes, and images to try it on."""

    @property
    def name(self) -> str:
        """In messages."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the ID classes."""

    @property
    def preprocess(self) -> Preprocess:
        """How images reach networks that do not say so themselves."""

    @property
    def id_test(self) -> Split:
        """ID images."""

    @property
    def columns(self) -> int | None:
        """The length of a row of a table; None for images."""


def first_images(benchmark: Audience, preprocess: Preprocess) -> Tensor:
    """Return some images of ID test, spread over its classes, as the network sees them, (n, channels, h, w).

    Raises:
        DataError: an image cannot be read, or the preprocess fails on it.
        ConfigError: the benchmark's items are rows of a table.
    """
    split = benchmark.id_test
    if benchmark.columns is not None:
        raise ConfigError(
            f"benchmark '{benchmark.name}' has rows of a table — a model takes images — choose another benchmark, or "
            "evaluate your features with evaluate_features"
        )
    return next(batches(some_of(split), preprocess, FEW))


def probability_warnings(backbone: Backbone) -> tuple[str, ...]:
    """Return a warning where the logits that the probe saw are probabilities already."""
    rows = backbone.probe.rows.get("logits")
    if rows is None or rows.shape[1] < 2 or not backbone.classifies:
        return ()
    if (rows >= 0).all() and np.abs(rows.sum(axis=1) - 1).max() < _PROBABILITY:
        return (
            f"model '{backbone.name}' returns probabilities (its rows sum to 1) where logits are expected: energies, "
            "maximum logits and temperatures of them mean nothing — return what goes into the softmax",
        )
    return ()


def range_warnings(images: Tensor, preprocess: Preprocess, module: nn.Module | None) -> tuple[str, ...]:
    """Return warnings about images that are not in the range which the network learnt from.

    Args:
        images: normalised, of ID test.
        preprocess: which made them.
        module: the network, whose first batch norm knows the statistics of what it learnt from; None = not known.
    """
    reach = float(images.abs().max())
    if reach > _LARGEST:
        return (
            f"images reach {reach:.0f} after preprocess, where normalised pixels lie within about ±3 — scale pixels to "
            "[0, 1], as ToTensor() does",
        )
    return () if module is None else (*_published(module, preprocess), *_learnt(module, images))


def _published(module: nn.Module, preprocess: Preprocess) -> Iterator[str]:
    """What timm says of released weights against the preprocess."""
    settings = getattr(module, "pretrained_cfg", None)
    if not isinstance(settings, dict) or settings.get("num_classes") != getattr(module, "num_classes", None):
        return
    mean, std = (tuple(map(float, settings.get(key) or ())) for key in ("mean", "std"))
    near = all(
        len(a) == len(b) and all(abs(x - y) < 0.02 for x, y in zip(a, b, strict=True))
        for a, b in ((mean, preprocess.mean), (std, preprocess.std))
    )
    if mean and std and not near:
        yield (
            f"preprocess normalises by mean {preprocess.mean} and std {preprocess.std}, timm publishes this model with "
            f"mean {mean} and std {std}"
        )


def _learnt(module: nn.Module, images: Tensor) -> Iterator[str]:
    """What the first batch norm has seen in training against what it sees now."""
    norm = next((part for part in module.modules() if isinstance(part, nn.BatchNorm2d)), None)
    if norm is None or norm.running_mean is None or norm.running_var is None or not _counted(norm):
        return
    seen: list[Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].detach().float()))
    try:
        with torch.no_grad(), evaluating(module):
            module(images.to(norm.running_mean.device, norm.running_mean.dtype))
    finally:
        hook.remove()
    if not seen:
        return
    now, std = seen[0].mean(dim=(0, 2, 3)), norm.running_var.float().sqrt() + 1e-6
    off = float(((now - norm.running_mean.float()) / std).abs().median())
    spread = float((seen[0].transpose(0, 1).flatten(1).std(dim=1) / std).median())
    if off > _FAR or not 1 / _FAR < spread < _FAR:
        yield (
            f"images do not look like those that the network learnt from: in its first batch norm they lie {off:.1f} "
            f"standard deviations away and spread {spread:.2g} times as wide — check mean and std of preprocess"
        )


def _counted(norm: nn.BatchNorm2d) -> bool:
    """Whether the statistics are of images: fresh ones are 0 and 1."""
    mean, var = norm.running_mean, norm.running_var
    return mean is not None and var is not None and not (bool((mean == 0).all()) and bool((var == 1).all()))
