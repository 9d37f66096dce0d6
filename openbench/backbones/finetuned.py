"""A network with released weights that is trained on the benchmark: everything but the head starts from them."""

import copy

from torch import nn

from openbench.backbones.device import Precision
from openbench.backbones.network import NetworkBackbone
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError


def finetuned(
    name: str,
    start: NetworkBackbone,
    *,
    num_classes: int | None = None,
    preprocess: Preprocess | None = None,
    precision: Precision = "fp32",
) -> NetworkBackbone:
    """Return an untrained backbone whose weights are those of `start` whenever they are drawn, with a new head.

    The head is drawn from the seed as torch draws any linear layer; batch norm's statistics come with the weights.

    Args:
        name: what users type after `backbone=`.
        start: the network to start from, with weights; it stays as it is.
        num_classes: c of the new head; null = the benchmark's.
        preprocess: null = the benchmark's.
        precision: see NetworkBackbone.

    Raises:
        ConfigError: `start` has no weights, or classes or preprocessing are not known.
    """
    if not isinstance(start, NetworkBackbone) or not start.trained:
        raise ConfigError(
            f"backbone '{name}': start is {getattr(start, 'name', type(start).__name__)}, without weights — a network "
            "with released weights is expected — name its weights or checkpoint, or train it without `start`"
        )
    if num_classes is None or preprocess is None:
        raise ConfigError(f"backbone '{name}': num_classes and preprocess — found null — give both, or a benchmark")
    classes = num_classes
    given = copy.deepcopy(start.module())
    anatomy = start.anatomy

    def make() -> nn.Module:
        module = copy.deepcopy(given)
        old = anatomy.linear(module)
        parent, _, last = anatomy.head.rpartition(".")
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
        setattr(module.get_submodule(parent), last, new)
        return module

    return NetworkBackbone(
        name,
        f"{start.architecture}, new head of {classes}, started from weights {start.weights_sha256}",
        make,
        lambda _: anatomy,
        preprocess=preprocess,
        precision=precision,
    )
