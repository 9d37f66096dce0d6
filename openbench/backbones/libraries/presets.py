"""Shared parts of the library adapters: published preprocessing, class counts, weights and stages."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from openbench.backbones.anatomy import Layout, choose_stages
from openbench.backbones.checkpoints import SUFFIXES, find_weights, read_weights
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.errors import CheckpointError, ConfigError, available

Interpolation = Literal["nearest", "bilinear", "bicubic"]
PRESET: Literal["preset"] = "preset"
DEFAULT = "default"  # weights: the ones that the library takes where it is given no name


def chosen_preprocess(
    preprocess: Preprocess | Literal["preset"] | None, preset: Preprocess | None, where: str
) -> Preprocess:
    """Return the preset if the config says `preset`, else the preprocessing that it gives.

    Raises:
        ConfigError: no preprocessing, another word, or a preset that does not exist.
    """
    if isinstance(preprocess, Preprocess):
        return preprocess
    if preprocess == PRESET and preset is not None:
        return preset
    raise ConfigError(
        f"{where}.preprocess: found {preprocess!r} — allowed: 'preset' (as the weights were published, if they were), "
        "or a node with _target_: openbench.core.preprocess.Preprocess; null = the benchmark's"
    )


def chosen_classes(num_classes: int | None, published: int, released: bool) -> int:
    """Return the number of classes: the published one for released weights, else the config's; 0 stays 0.

    Released weights keep their classes whatever the benchmark has: a method that reads features needs none of them.
    """
    return published if num_classes is None or (released and num_classes) else num_classes


def chosen_weights(weights: str | None, names: Iterable[str], where: str) -> str | Path | None:
    """Return the released name or the file that `weights` stands for; None = random weights.

    Raises:
        ConfigError: neither a released name nor the path of a file.
        CheckpointError: the file does not exist.
    """
    released = list(names)
    if weights is None or weights in released:
        return weights
    if "/" in weights or Path(weights).suffix in SUFFIXES:
        return find_weights(weights)
    raise ConfigError(
        f"{where} has no weights '{weights}' — allowed: a released name ({available(released, weights)}), a file "
        f"({', '.join(SUFFIXES)}), or null for random weights"
    )


def load_file(
    backbone: NetworkBackbone, file: Path, sha256: str | None, without: Sequence[str] = ()
) -> NetworkBackbone:
    """Load a file of weights and return the backbone.

    Args:
        backbone: receives the weights.
        file: a state dict.
        sha256: the hash that the file must have; None = any.
        without: names of the classifiers in the file that the network does not have.
    """
    dropped = tuple(f"{name}." for name in without)
    state = {key: value for key, value in read_weights(file, sha256).items() if not key.startswith(dropped)}
    return backbone.load_state(state, f"'{file}'")


@contextmanager
def fetching(what: str) -> Iterator[None]:
    """Say what to do where released weights cannot be loaded.

    Raises:
        CheckpointError: they cannot.
    """
    try:
        yield
    except Exception as error:  # huggingface_hub raises many kinds, from several packages
        raise CheckpointError(
            f"weights of {what} cannot be loaded ({type(error).__name__}: {str(error)[:200]}) — fetch the file "
            "elsewhere, put it into a data root and set backbone.weights=weights/<file>"
        ) from error


def crop_preprocess(settings: Mapping[str, Any], where: str) -> Preprocess:
    """Return the Preprocess of timm's data settings: input_size, crop_pct, crop_mode, interpolation, mean, std.

    Raises:
        ConfigError: an input that is not square, or a crop mode or filter that Preprocess cannot express.
    """
    height, width = settings["input_size"][-2:]
    mode, interpolation = settings.get("crop_mode", "center"), settings["interpolation"]
    if height != width or mode not in ("center", "squash") or interpolation not in get_args(Interpolation):
        raise ConfigError(
            f"{where}: its preset (input {height}×{width}, crop mode '{mode}', filter '{interpolation}') cannot be "
            "expressed — give preprocess explicitly"
        )
    scaled = math.floor(height / settings.get("crop_pct", 1.0))
    return Preprocess(
        resize=scaled if mode == "center" else (scaled, scaled),
        crop=height,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        interpolation=interpolation,
    )


def stages(module: nn.Module, prefix: str = "") -> tuple[dict[str, str], Layout, int]:
    """Return the stages of a timm network, their layout and the number of tokens before the patches."""
    info = [(prefix + part["module"], part["reduction"]) for part in getattr(module, "feature_info", None) or ()]
    if not info:
        return {}, "nchw", 0
    if len({reduction for _, reduction in info}) == 1:
        return choose_stages(info), "tokens", int(getattr(module, "num_prefix_tokens", 0))
    return choose_stages(info), "nhwc" if getattr(module, "output_fmt", "") == "NHWC" else "nchw", 0
