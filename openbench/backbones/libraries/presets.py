"""What library adapters share: how a model was published, how many classes it has, where its stages are."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import nn

from openbench.backbones.anatomy import Layout, choose_stages
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError

Interpolation = Literal["nearest", "bilinear", "bicubic"]
PRESET: Literal["preset"] = "preset"


def chosen_preprocess(
    given: Preprocess | Literal["preset"] | None, preset: Preprocess | None, where: str
) -> Preprocess:
    """Return `preset` if that word was given, else what was given.

    Raises:
        ConfigError: nothing given, another word, or a preset that does not exist.
    """
    if isinstance(given, Preprocess):
        return given
    if given == PRESET and preset is not None:
        return preset
    found = "there is no preset" if given == PRESET else f"found {given!r}"
    raise ConfigError(
        f"{where}.preprocess: {found} — allowed: 'preset' (as the weights were published), or a node with "
        "_target_: openbench.core.preprocess.Preprocess; null = the benchmark's"
    )


def chosen_classes(given: int | None, published: int, pretrained: bool) -> int:
    """Return the number of classes: the published one for released weights, else the one given if any; 0 if asked for.

    Released weights keep their classes whatever the benchmark has: a method that reads features needs none of them.
    """
    return published if given is None or (pretrained and given) else given


def crop_preprocess(settings: Mapping[str, Any], where: str) -> Preprocess:
    """Return the Preprocess of timm's data settings: input_size, crop_pct, crop_mode, interpolation, mean, std.

    Raises:
        ConfigError: an input that is not square, or a crop mode or filter that Preprocess cannot express.
    """
    height, width = settings["input_size"][-2:]
    mode, filter_name = settings.get("crop_mode", "center"), settings["interpolation"]
    if height != width or mode not in ("center", "squash") or filter_name not in get_args(Interpolation):
        raise ConfigError(
            f"{where}: preset with input {height}×{width}, crop mode '{mode}', filter '{filter_name}' — square input, "
            "crop modes center and squash, and nearest, bilinear, bicubic can be expressed — give preprocess explicitly"
        )
    scaled = math.floor(height / settings.get("crop_pct", 1.0))
    return Preprocess(
        resize=scaled if mode == "center" else (scaled, scaled),
        crop=height,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        interpolation=filter_name,
    )


def stages(module: nn.Module, prefix: str = "") -> tuple[dict[str, str], Layout, int]:
    """Return the stages of a timm network, their layout and the number of tokens before the patches."""
    info = [(prefix + part["module"], part["reduction"]) for part in getattr(module, "feature_info", None) or ()]
    if not info:
        return {}, "nchw", 0
    if len({reduction for _, reduction in info}) == 1:
        return choose_stages(info), "tokens", int(getattr(module, "num_prefix_tokens", 0))
    return choose_stages(info), "nhwc" if getattr(module, "output_fmt", "") == "NHWC" else "nchw", 0
