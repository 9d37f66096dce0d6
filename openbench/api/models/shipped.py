"""Whether a user's module is, weights included, a backbone that openbench ships: then its records are the same."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from openbench.api.models.computation import computation, same_for_any_number, same_values
from openbench.api.models.described import described, gradient_hooks
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import find_weights, read_weights
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.preprocess import Preprocess
from openbench.digest import digest
from openbench.errors import CheckpointError, OpenbenchError
from openbench.paths import config_dir
from openbench.public import TARGET

_WEIGHTS = ("weights", "checkpoint")
# Where the classes of a network are → the function that makes such networks from a config.
_MAKERS = {
    "openbench.backbones.cifar": "openbench.backbones.cifar.resnet",
    "timm": "openbench.backbones.libraries.from_timm.timm_model",
}


@dataclass(frozen=True)
class Shipped:
    """A backbone of openbench's configs, and its node."""

    backbone: Backbone
    config: Mapping[str, Any]


def shipped_node(backbone: Backbone, module: nn.Module, images: Tensor) -> Shipped | None:
    """Return the shipped backbone with the same computation, weights and preprocess as a user's; None if there is none.

    The computation is the same where the layers are, or, in a class of somebody else's, the tensor operations, for any
    number of images of this size. A module whose hooks may change gradients is nobody else's. Only weights that lie
    in a data root are compared; nothing is downloaded.

    Args:
        backbone: made of the user's module.
        module: the user's, copied.
        images: a few, as they reach it.
    """
    if not isinstance(backbone, NetworkBackbone) or any(map(gradient_hooks, module.modules())):
        return None
    made_by = next(
        (maker for home, maker in _MAKERS.items() if f"{type(module).__module__}.".startswith(f"{home}.")), ""
    )
    for name, node, file in _candidates(made_by):
        if not _may_be(node, backbone.preprocess, module):
            continue
        try:
            if not same_values(read_weights(file), module.state_dict()):
                continue
            other = build(node, f"backbone '{name}'", Backbone)
        except OpenbenchError:  # e.g. another file of that name
            continue
        if not isinstance(other, NetworkBackbone) or other.preprocess != backbone.preprocess:
            continue
        if _same_layers(other, backbone, module) or _same_operations(other, module, images):
            return Shipped(other, {**node, NAME: name})
    return None


def _same_layers(other: NetworkBackbone, backbone: NetworkBackbone, module: nn.Module) -> bool:
    """Whether a network has the layers of a shipped one, with equal weights under equal names."""
    if other.weights_sha256 != backbone.weights_sha256:
        return False
    return described(other.network, weights=False).digest == described(module, weights=False).digest


def _same_operations(other: NetworkBackbone, module: nn.Module, images: Tensor) -> bool:
    """Whether a network whose classes and names of layers are others computes what a shipped one does."""
    module = copy.deepcopy(module)  # it may keep what it is given, and these are the tracers' tensors
    if not same_for_any_number(module, images):
        return False
    network = other.to(images.device).network
    for batch in (images, images[:1]):
        found = computation(module, batch)
        if found is None or found != computation(network, batch):
            return False
    return True


@cache
def _nodes() -> tuple[tuple[str, dict[str, Any]], ...]:
    names = sorted(file.stem for file in (config_dir() / "backbone").glob("*.yaml"))
    return tuple((name, node) for name in names if (node := shipped("backbone", name)) is not None)


def _candidates(made_by: str) -> Iterator[tuple[str, dict[str, Any], Path]]:
    """The shipped nodes whose weights are here, with the file: those of a maker, or of all where none is known."""
    makers = (made_by,) if made_by else tuple(_MAKERS.values())
    for name, node in _nodes():
        files = [str(node[key]) for key in _WEIGHTS if node.get(key)]
        if node.get(TARGET) in makers and files:
            try:
                file = find_weights(files[0])
            except CheckpointError:
                continue
            yield name, node, file


def _may_be(node: Mapping[str, Any], preprocess: Preprocess, module: nn.Module) -> bool:
    """Whether a node is worth building: its images are prepared alike, and its library's name is the module's."""
    given = node.get("preprocess")
    if not isinstance(given, Mapping) or digest(build(given, "preprocess", Preprocess)) != digest(preprocess):
        return False
    settings = getattr(module, "pretrained_cfg", None)
    return not isinstance(settings, Mapping) or settings.get("architecture") == str(node.get("model")).split(".")[0]
