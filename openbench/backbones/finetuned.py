"""A network with released weights that is trained on the benchmark, with a new head or with the released one."""

import copy
from typing import Literal, get_args

from torch import nn

from openbench.backbones.device import Precision
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError, check_choice

HeadStart = Literal["new", "kept"]
START: Literal["start"] = "start"


def finetuned(
    name: str,
    start: NetworkBackbone,
    *,
    head: HeadStart = "new",
    num_classes: Count | None = None,
    preprocess: Preprocess | Literal["start"] | None = None,
    precision: Precision = "fp32",
    compile: bool = False,
) -> NetworkBackbone:
    """Return an untrained backbone whose weights are those of `start` whenever they are drawn.

    A new head is drawn from the seed as torch draws any linear layer; batch norm's statistics come with the weights.
    With its head kept the network already is a trained classifier, so fine-tunings start from it directly.

    Args:
        name: what users type after `backbone=`.
        start: the network to start from, with weights; it stays as it is.
        head: `new`, or `kept` where the classes are those that `start` was trained on, in the same order.
        num_classes: c of the head; null = the benchmark's.
        preprocess: `start` = that of `start`; null = the benchmark's.
        precision: see NetworkBackbone.
        compile: see NetworkBackbone.

    Raises:
        ConfigError: `start` has no weights, classes or preprocessing are not known, or a kept head has another number
            of classes.
    """
    check_choice(f"backbone '{name}': head", head, get_args(HeadStart))
    if not isinstance(start, NetworkBackbone) or not start.trained:
        raise ConfigError(
            f"backbone '{name}': start is {getattr(start, 'name', type(start).__name__)}, without weights — a network "
            "with released weights is expected — name its weights or checkpoint, or train it without `start`"
        )
    if num_classes is None or preprocess is None:
        raise ConfigError(f"backbone '{name}': num_classes and preprocess — found null — give both, or a benchmark")
    if head == "kept" and start.num_classes != num_classes:
        raise ConfigError(
            f"backbone '{name}': head=kept — '{start.name}' has {start.num_classes} classes, {num_classes} are needed "
            "— write backbone.head=new"
        )
    classes = num_classes
    given = copy.deepcopy(start.module())
    anatomy = start.anatomy

    def make() -> nn.Module:
        module = copy.deepcopy(given)
        if head == "kept":
            return module
        old = anatomy.linear(module)
        parent, _, last = anatomy.head.rpartition(".")
        new = nn.Linear(old.in_features, classes, bias=old.bias is not None)
        setattr(module.get_submodule(parent), last, new)
        return module

    made = NetworkBackbone(
        name,
        f"{start.architecture}, {'head kept' if head == 'kept' else f'new head of {classes}'}, "
        f"started from weights {start.weights_sha256}",
        make,
        lambda _: anatomy,
        preprocess=start.preprocess if preprocess == START else preprocess,
        precision=precision,
        compile=compile,
    )
    made.starts_trained = head == "kept"
    return made
