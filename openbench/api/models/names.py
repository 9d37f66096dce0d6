"""Models by name and weights by file: openbench's configs, timm, torchvision, open_clip, Hugging Face's hub."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from openbench import _compat
from openbench.api.models.parts import unwrapped
from openbench.backbones.checkpoints import apply_weights, find_weights, read_weights
from openbench.config.overrides import word
from openbench.errors import CheckpointError, ConfigError

_TIMM = ("hf_hub:", "local-dir:")  # timm's own prefixes
_TRANSFORMERS = "transformers:"
# Prefix → the config of a backbone, and the key that takes what follows a slash: the name of weights.
_LIBRARIES = {"timm": ("timm", ""), "torchvision": ("torchvision", "weights"), "open_clip": ("open_clip", "weights")}


def named_config(name: str) -> tuple[str, dict[str, str]]:
    """Return the config of a backbone that a name stands for, and the keys that it sets: `timm` with its `model`.

    Args:
        name: of a backbone's config, or `timm:NAME`, `torchvision:NAME[/WEIGHTS]`, `open_clip:NAME[/WEIGHTS]`.
    """
    prefix, _, rest = name.partition(":")
    if not rest or prefix not in _LIBRARIES:
        return name, {}
    config, key = _LIBRARIES[prefix]
    model, _, weights = rest.rpartition("/") if key and "/" in rest else (rest, "", "")
    return config, {"model": model, **({key: weights} if weights else {})}


def config_words(name: str) -> list[str]:
    """Return the overrides by which the command line names a model: `timm:resnet18` is `backbone=timm` with its model.

    Args:
        name: as for `named_config`.
    """
    config, keys = named_config(name)
    return [f"backbone={word(config)}", *(f"backbone.{key}={word(value)}" for key, value in keys.items())]


def is_name(model: object) -> bool:
    """Whether a model is named by a config of openbench or of a library that it knows, and not by a hub or a file."""
    return isinstance(model, str) and not model.endswith(".onnx") and not model.startswith((*_TIMM, _TRANSFORMERS))


def loaded(model: object) -> object:
    """Return the network that a hub's name stands for, from the hub's cache or downloaded; other models as they are.

    Raises:
        CheckpointError: it cannot be had.
        ConfigError: the package is not installed.
    """
    if not isinstance(model, str) or not model.startswith((*_TIMM, _TRANSFORMERS)):
        return model
    if model.startswith(_TRANSFORMERS):
        library = _transformers(model)
        return _had(
            lambda: library.AutoModelForImageClassification.from_pretrained(model.removeprefix(_TRANSFORMERS)), model
        )
    timm: Any = _compat.library("timm")
    return _had(lambda: timm.create_model(model, pretrained=True), model)


def own_preprocess(model: object) -> object | None:
    """Return the transform that a model was published with; None where it does not say, or was trained further.

    Args:
        model: as the user gave it; of timm only if it has the published classes, of Hugging Face with a processor
            beside its weights, of open_clip with the settings that it keeps.
    """
    settings = getattr(model, "pretrained_cfg", None)
    if isinstance(model, nn.Module) and isinstance(settings, Mapping):
        if getattr(model, "num_classes", 0) not in (0, settings.get("num_classes")):
            return None
        data: Any = _compat.library("timm.data")
        transform: object = data.create_transform(**data.resolve_data_config(pretrained_cfg=dict(settings)))
        return transform
    if type(model).__module__.startswith("open_clip."):
        clip: Any = _compat.library("open_clip")
        made: object = clip.image_transform_v2(
            clip.transform.PreprocessCfg(**clip.get_model_preprocess_cfg(model)), False
        )
        return made
    path = getattr(model, "name_or_path", "")
    if type(model).__module__.startswith("transformers.") and isinstance(path, str) and path:
        library = _transformers(path)
        try:
            processor: object = library.AutoImageProcessor.from_pretrained(path)
        except Exception:  # there is none, or it cannot be had: the user is asked for one
            return None
        return processor
    return None


def _transformers(name: str) -> Any:
    _compat.prepare_torchvision()
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"package 'transformers' is not installed, '{name}' needs it — pip install 'openbench-ood[transformers]'"
        ) from error
    return transformers


def _had(load: Callable[[], Any], name: str) -> Any:
    try:
        return load()
    except Exception as error:  # huggingface_hub raises many kinds, from several packages
        raise CheckpointError(
            f"model '{name}' cannot be had — {type(error).__name__}: {str(error)[:200]} — check the name and the "
            "network, or load the model yourself and pass it"
        ) from error


def check_is_no_weights(model: object) -> None:
    """Refuse a file of weights: without the network's class nothing can be computed.

    Raises:
        ConfigError: it is one.
    """
    if isinstance(model, str | Path) and Path(model).suffix in (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".th"):
        raise ConfigError(
            f"model '{model}' is a file of weights — a network expected — load them into its class and pass that, or "
            "name a backbone and give overrides=['backbone.weights=FILE']"
        )


Files = Mapping[str, str | Path]


def files_of(weights: object) -> Files | None:
    """Return files of weights by name: as given in a mapping, else each by its file's name; None for one file.

    Raises:
        ConfigError: something else, or two files of one name.
    """
    if weights is None or isinstance(weights, str | Path):
        return None
    if isinstance(weights, Mapping):
        found = {str(key): value for key, value in weights.items()}
    elif isinstance(weights, list | tuple):
        found = {Path(str(file)).stem: file for file in weights}
        if len(found) < len(weights):
            found = {str(file): file for file in weights}
    else:
        raise ConfigError(f"weights is a {type(weights).__name__} — a file, a list of files, or a mapping expected")
    odd = [value for value in found.values() if not isinstance(value, str | Path)]
    if odd and isinstance(odd[0], Tensor):
        raise ConfigError(
            "weights holds tensors, as state_dict() does — paths of files expected — load them into the network "
            "yourself: model.load_state_dict(weights)"
        )
    if odd or not found:
        raise ConfigError(f"weights holds {type(odd[0]).__name__ if odd else 'nothing'} — paths of files expected")
    return found


def with_weights(model: object, file: str | Path) -> nn.Module:
    """Return a copy of a network with the weights of a file; the network itself is not changed.

    Raises:
        ConfigError: the model is not a torch module.
        CheckpointError: the file is missing, unreadable, or does not fit.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"weights are given for a {type(model).__name__} — they go with a torch.nn.Module; a backbone by name "
            "takes overrides=['backbone.weights=FILE']"
        )
    made = copy.deepcopy(unwrapped(model))
    apply_weights(made, read_weights(find_weights(str(file))), f"'{file}'")
    return made
