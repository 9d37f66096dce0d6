"""Models by name and weights by file: openbench's configs, timm, torchvision, open_clip, Hugging Face's hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from openbench import _compat
from openbench.config.overrides import word
from openbench.errors import CheckpointError, ConfigError, pip_install

_TRANSFORMERS = "transformers:"
_HUBS = ("hf_hub:", "local-dir:", _TRANSFORMERS)  # the first two are timm's own prefixes
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
    """Whether a model is named by a config of openbench or of a library, rather than by a hub or a file."""
    return isinstance(model, str) and not model.endswith(".onnx") and not model.startswith(_HUBS)


def loaded(model: object) -> object:
    """Return the network that a hub's name stands for, from the hub's cache or downloaded; other models as they are.

    Raises:
        CheckpointError: it cannot be loaded.
        ConfigError: the package is not installed.
    """
    if not isinstance(model, str) or not model.startswith(_HUBS):
        return model
    library: Any = _transformers(model) if model.startswith(_TRANSFORMERS) else _compat.library("timm")
    try:
        if model.startswith(_TRANSFORMERS):
            name = model.removeprefix(_TRANSFORMERS)
            network: object = library.AutoModelForImageClassification.from_pretrained(name)
        else:
            network = library.create_model(model, pretrained=True)
    except Exception as error:  # huggingface_hub raises many kinds, from several packages
        raise CheckpointError(
            f"model '{model}' cannot be loaded ({type(error).__name__}: {str(error)[:200]}) — check name and network"
        ) from error
    return network


def published_preprocess(model: object) -> object | None:
    """Return the transform that a model was published with; None where it does not say, or was trained further.

    Args:
        model: of timm, if it has the published classes; of Hugging Face, with a processor beside its weights; or of
            open_clip.
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
    path = getattr(model, "name_or_path", "")
    if type(model).__module__.startswith("transformers.") and isinstance(path, str) and path:
        library = _transformers(path)
        try:
            transform = library.AutoImageProcessor.from_pretrained(path)
        except Exception:  # there is none, or it cannot be loaded: the user is asked for one
            return None
        return transform
    return None


def _transformers(name: str) -> Any:
    _compat.prepare_torchvision()
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"package 'transformers' for '{name}' is not installed — {pip_install('transformers')}"
        ) from error
    return transformers


def check_is_no_weights(model: object) -> None:
    """Refuse a file of weights: without the network's class nothing can be computed.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(model, str | Path) and Path(model).suffix in (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".th"):
        raise ConfigError(f"model '{model}' is a file of weights, not a network — load it into a network and pass that")
