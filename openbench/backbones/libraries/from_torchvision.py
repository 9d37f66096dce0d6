"""torchvision's classifiers as backbones, with released weights, your own, or random ones."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from openbench import _compat
from openbench.backbones.anatomy import Anatomy, Layout, choose_stages, last_linear, output_sides
from openbench.backbones.base import HeadKind
from openbench.backbones.checkpoints import find_weights
from openbench.backbones.device import Precision
from openbench.backbones.libraries.presets import (
    DEFAULT,
    chosen_classes,
    chosen_preprocess,
    chosen_weights,
    fetching,
    load_file,
)
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count
from openbench.core.preprocess import Preprocess
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, ConfigError, available

_CONTAINERS = ("features", "trunk_output", "blocks")
_PUBLISHED_CLASSES = 1000


def torchvision_model(
    name: str,
    model: str,
    *,
    weights: str | None = None,
    sha256: str | None = None,
    num_classes: Count | None = None,
    preprocess: Preprocess | Literal["preset"] | None = None,
    precision: Precision = "fp32",
    head: HeadKind | None = None,
    options: Mapping[str, Any] | None = None,
) -> NetworkBackbone:
    """Return a torchvision classifier as a backbone.

    Args:
        name: what users type after `backbone=`.
        model: torchvision's name, e.g. `resnet50`.
        weights: torchvision's name of released weights, e.g. `IMAGENET1K_V1` or `default` (from the data roots,
            `weights/<file>`, else torch hub's cache, else downloaded); or your own file; null = random weights.
        sha256: the hash that the file must have; released files are also checked against the digits in their name.
        num_classes: c; that of released weights, else the benchmark's.
        preprocess: `preset` = as torchvision publishes the model; null = the benchmark's.
        precision: see NetworkBackbone.
        head: a classifier to fit on the features, in place of its own: `linear_probe`, `nearest_mean`, `knn`.
        options: further arguments of torchvision's constructor.

    Raises:
        ConfigError: unknown model or weights.
        CheckpointError: weights that are missing or do not fit.
    """
    models, where = _compat.library("torchvision").models, f"backbone '{name}'"
    known = models.list_models(module=models)
    if model not in known:
        raise ConfigError(f"{where}: torchvision has no classifier '{model}' — nearest: {available(known, model)}")
    published = models.get_model_weights(model)
    names = {**published.__members__, DEFAULT: published.DEFAULT}
    source = chosen_weights(weights, names, where)
    released = names[source] if isinstance(source, str) else None
    crop = chosen_preprocess(preprocess, _preset(released or published.DEFAULT), where)
    settings = dict(options or {})
    classes = chosen_classes(num_classes, _PUBLISHED_CLASSES, released is not None) if head is None else 0
    make = partial(models.get_model, model, weights=None, num_classes=classes or _PUBLISHED_CLASSES, **settings)
    last = None
    if head is not None:
        with torch.device("meta"):
            last = last_linear(make())
        make = partial(_without_classifier, make, last)
    backbone = NetworkBackbone(
        name,
        f"torchvision {model}, {classes} classes, {sorted(settings.items())}",
        make,
        partial(anatomy, image=(crop.channels, crop.crop, crop.crop), head=last),
        preprocess=crop,
        precision=precision,
    )
    backbone.head_to_fit = head
    if source is None:
        return backbone
    file = source if isinstance(source, Path) else released_file(names[source].url)
    return load_file(backbone, file, sha256, () if last is None else (last,))


def _without_classifier(make: Callable[[], nn.Module], last: str) -> nn.Module:
    module = make()
    module.set_submodule(last, nn.Identity())
    return module


def anatomy(module: nn.Module, image: tuple[int, int, int], head: str | None = None) -> Anatomy:
    """Return where a torchvision classifier's parts are; without stages where its layout is not known.

    Args:
        module: the classifier.
        image: (channels, height, width) of its input.
        head: the name of its classifier; None = its last linear layer.
    """
    models = _compat.library("torchvision").models
    head = head or last_linear(module)
    if isinstance(module, models.VisionTransformer):
        blocks = [f"encoder.layers.{name}" for name, _ in module.encoder.layers.named_children()]
        return Anatomy(head, choose_stages([(block, 1) for block in blocks]), "tokens", prefix_tokens=1)
    children = dict(module.named_children())
    if "layer1" in children:
        return Anatomy(head, {f"stage{i}": f"layer{i}" for i in range(1, 5) if f"layer{i}" in children})
    layout: Layout = "nhwc" if isinstance(module, models.SwinTransformer) else "nchw"
    for container in _CONTAINERS:
        if container in children:
            parts = [f"{container}.{part}" for part, _ in children[container].named_children()]
            sides = output_sides(module, parts, image, layout)
            return Anatomy(head, choose_stages(list(zip(parts, sides, strict=True))), layout)
    return Anatomy(head)


def released_file(url: str) -> Path:
    """Return the local file of released weights, downloaded only if neither a data root nor hub's cache has it.

    Raises:
        CheckpointError: no network, or content that does not begin with the hash digits in the file's name.
    """
    file_name = url.rsplit("/", 1)[-1]
    try:
        path = find_weights(f"weights/{file_name}")
    except CheckpointError:
        path = Path(torch.hub.get_dir()) / "checkpoints" / file_name
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with fetching(f"torchvision at {url}"):
                torch.hub.download_url_to_file(url, str(path))
    stated = re.search(r"-([0-9a-f]{8,})\.", file_name)
    if stated is not None and not (sha256 := file_sha256(path)).startswith(stated[1]):
        raise CheckpointError(
            f"weights '{path}' have SHA-256 {sha256}, expected {stated[1]}… by the file's name — delete the file and "
            "fetch it again"
        )
    return path


def _preset(weights: Any) -> Preprocess:
    preset = weights.transforms()
    return Preprocess(
        resize=preset.resize_size[0],
        crop=preset.crop_size[0],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
    )
