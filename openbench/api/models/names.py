"""Models by name: openbench's configs, timm, torchvision, open_clip; and the transforms published with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from openbench import _compat
from openbench.config.overrides import word
from openbench.errors import ConfigError

# Prefix, which is the name of a config, → whether `NAME/WEIGHTS` may follow it.
_LIBRARIES = {"timm": False, "torchvision": True, "open_clip": True}


def named_config(name: str) -> tuple[str, dict[str, str]]:
    """Return the config of a backbone that a name stands for, and the keys that it sets: `timm` with its `model`.

    Args:
        name: of a backbone's config, or `timm:NAME`, `torchvision:NAME[/WEIGHTS]`, `open_clip:NAME[/WEIGHTS]`.
    """
    prefix, _, rest = name.partition(":")
    if not rest or prefix not in _LIBRARIES:
        return name, {}
    if _LIBRARIES[prefix] and "/" in rest:
        model, _, weights = rest.rpartition("/")
        return prefix, {"model": model, "weights": weights}
    return prefix, {"model": rest}


def config_words(name: str) -> list[str]:
    """Return the overrides by which the command line names a model: `timm:resnet18` is `backbone=timm` with its model.

    Args:
        name: as for `named_config`.
    """
    config, keys = named_config(name)
    return [f"backbone={word(config)}", *(f"backbone.{key}={word(value)}" for key, value in keys.items())]


def is_name(model: object) -> TypeGuard[str]:
    """Whether a model is named by a config of openbench or of a library, rather than by a file."""
    return isinstance(model, str) and not model.endswith(".onnx")


def published_preprocess(model: object) -> object | None:
    """Return the transform that a model was published with; None where it does not say, or was trained further.

    Args:
        model: of timm, if it has the published classes, or of open_clip.
    """
    settings = getattr(model, "pretrained_cfg", None)
    if isinstance(model, nn.Module) and isinstance(settings, Mapping):
        if getattr(model, "num_classes", 0) not in (0, settings.get("num_classes")):
            return None
        data: Any = _compat.library("timm.data")
        return data.create_transform(**data.resolve_data_config(pretrained_cfg=dict(settings)))
    if type(model).__module__.startswith("open_clip."):
        clip: Any = _compat.library("open_clip")
        settings = clip.transform.PreprocessCfg(**clip.get_model_preprocess_cfg(model))
        return clip.image_transform_v2(settings, False)
    return None


def check_is_no_weights(model: object) -> None:
    """Refuse a file of weights: without the network's class nothing can be computed.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(model, str | Path) and Path(model).suffix in (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".th"):
        raise ConfigError(f"model '{model}' is a file of weights, not a network — load it into a network and pass that")
