"""One network with several files of weights: the epochs of a training run, or its seeds."""

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from openbench.api.models.network import unwrapped
from openbench.backbones.checkpoints import apply_weights, find_weights, read_weights
from openbench.errors import ConfigError

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
            "takes overrides=['backbone.checkpoint=FILE'], a cifar ResNet overrides=['backbone.weights=FILE']"
        )
    made = copy.deepcopy(unwrapped(model))
    apply_weights(made, read_weights(find_weights(str(file))), f"'{file}'")
    return made
