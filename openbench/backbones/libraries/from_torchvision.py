"""torchvision's classifiers as backbones: released weights with their preset, your own weights, or untrained."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError

import torch
from torch import nn

from openbench import _compat
from openbench.backbones.anatomy import Anatomy, Layout, choose_stages, last_linear, output_sides
from openbench.backbones.base import HeadKind
from openbench.backbones.checkpoints import find_weights, read_weights
from openbench.backbones.device import Precision
from openbench.backbones.libraries.presets import chosen_classes, chosen_preprocess
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count
from openbench.core.preprocess import Preprocess
from openbench.digest import file_sha256
from openbench.errors import CheckpointError, ConfigError, did_you_mean

_CONTAINERS = ("features", "trunk_output", "blocks")
_PUBLISHED_CLASSES = 1000


def torchvision_model(
    name: str,
    model: str,
    *,
    weights: str | None = None,
    checkpoint: str | None = None,
    sha256: str | None = None,
    num_classes: Count | None = None,
    preprocess: Preprocess | Literal["preset"] | None = None,
    precision: Precision = "fp32",
    compile: bool = False,
    head: HeadKind | None = None,
    options: Mapping[str, Any] | None = None,
) -> NetworkBackbone:
    """Return a torchvision classifier as a backbone.

    Args:
        name: what users type after `backbone=`.
        model: torchvision's name, e.g. `resnet50`.
        weights: torchvision's name of released weights, e.g. `IMAGENET1K_V1`; found in the data roots
            (`weights/<file>`), else in torch hub's cache, else downloaded there.
        checkpoint: file with your own weights instead, searched in the data roots.
        sha256: the hash that the file must have; released files are also checked against the digits in their name.
        num_classes: c; the weights' where they are released, else the benchmark's.
        preprocess: `preset` = as torchvision publishes the model; null = the benchmark's.
        precision: see NetworkBackbone.
        compile: see NetworkBackbone.
        head: a classifier to fit on the features, in place of its own: `linear_probe`, `nearest_mean`, `knn`.
        options: further arguments of torchvision's constructor.

    Raises:
        ConfigError: unknown model or weights.
        CheckpointError: weights that are missing or do not fit.
    """
    models = _compat.library("torchvision").models
    if model not in models.list_models(module=models):
        known = models.list_models(module=models)
        raise ConfigError(
            f"backbone '{name}': torchvision has no classifier '{model}'{did_you_mean(model, known)} — "
            "torchvision.models.list_models() names them all"
        )
    if weights is not None and checkpoint is not None:
        raise ConfigError(f"backbone '{name}': weights and checkpoint both given — choose one, set the other to null")
    released = _released(models, name, model, weights)
    chosen = released or models.get_model_weights(model).DEFAULT
    crop = chosen_preprocess(preprocess, _preset(chosen), f"backbone '{name}'")
    given = dict(options or {})
    classes = chosen_classes(num_classes, _PUBLISHED_CLASSES, released is not None) if head is None else 0
    make = partial(models.get_model, model, weights=None, num_classes=classes or _PUBLISHED_CLASSES, **given)
    last = None if head is None else _last(make)
    backbone = NetworkBackbone(
        name,
        f"torchvision {model}, {classes} classes, {sorted(given.items())}",
        make if last is None else partial(_without_classifier, make, last),
        partial(anatomy, image=(crop.channels, crop.crop, crop.crop), head=last),
        preprocess=crop,
        precision=precision,
        compile=compile,
    )
    backbone.head_to_fit = head
    if released is None and checkpoint is None:
        return backbone
    file = find_weights(checkpoint) if checkpoint is not None else released_file(released.url)
    if last is None:
        return backbone.load(file, sha256)
    kept = {key: value for key, value in read_weights(file, sha256).items() if not key.startswith(f"{last}.")}
    return backbone.load_state(kept, f"'{file}'")


def _last(make: Callable[[], nn.Module]) -> str:
    """The name of a network's classifier; the network is made without values."""
    with torch.device("meta"):
        return last_linear(make())


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
    except CheckpointError as error:
        path = Path(torch.hub.get_dir()) / "checkpoints" / file_name
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                torch.hub.download_url_to_file(url, str(path))
            except (URLError, OSError) as failed:
                raise CheckpointError(f"{error}; or fetch it from {url} — the download failed: {failed}") from failed
    stated = re.search(r"-([0-9a-f]{8,})\.", file_name)
    if stated is not None:
        found = file_sha256(path)
        if not found.startswith(stated[1]):
            raise CheckpointError(
                f"weights '{path}' are not the released ones — SHA-256 {found} — expected {stated[1]}… by its name — "
                "delete the file and fetch it again"
            )
    return path


def _released(models: Any, name: str, model: str, weights: str | None) -> Any:
    if weights is None:
        return None
    known = models.get_model_weights(model)
    if weights not in known.__members__:
        raise ConfigError(
            f"backbone '{name}': torchvision has no weights '{weights}' for {model}"
            f"{did_you_mean(weights, known.__members__)} — allowed: {', '.join(known.__members__)}"
        )
    return known[weights]


def _preset(weights: Any) -> Preprocess:
    preset = weights.transforms()
    return Preprocess(
        resize=preset.resize_size[0],
        crop=preset.crop_size[0],
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
    )
