"""The network of a detector: a shipped backbone by name or the user's model, ready for its images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from openbench.api.models.names import check_is_no_weights, is_name, loaded, named_config
from openbench.api.models.wrap import ImageTask, ModelOptions, wrap
from openbench.backbones.base import Backbone
from openbench.backbones.rows import Rows
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import names, shipped
from openbench.core.benchmark import Split
from openbench.core.composite import leaves
from openbench.core.features import Head
from openbench.core.method import Method
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.engine.compatibility import read_of_classifier, refuse_missing_parts
from openbench.engine.probe import some_of
from openbench.errors import ConfigError, DataError, NotApplicableError, did_you_mean


def backbone_by_name(name: str, classes: Sequence[str] = ()) -> tuple[Backbone, Mapping[str, Any]]:
    """Return the backbone of a name, with its weights, and its config.

    Args:
        name: of one of openbench's backbones, `timm:NAME`, `torchvision:NAME[/WEIGHTS]` or `open_clip:NAME[/WEIGHTS]`.
        classes: names of the ID classes, for networks whose head is made of them.

    Raises:
        ConfigError: an unknown name.
        CheckpointError: weights that are missing.
    """
    config, keys = named_config(name)
    node = shipped("backbone", config)
    if node is None:
        raise ConfigError(
            f"backbone '{config}' not found in configs/backbone{did_you_mean(config, names('backbone'))} — pass a "
            "torch.nn.Module, or choose one (python -m openbench list backbone)"
        )
    node = {**node, **keys}
    node["name"] = str(node.get("name", config)).replace("${.model}", str(node.get("model", "")))
    of_classes = {"classes": tuple(classes), "benchmark_classes": tuple(classes), "num_classes": len(classes)}
    known: dict[str, Any] = of_classes if classes else {}
    backbone: Backbone = build(node, f"backbone '{config}'", Backbone, **known)
    if not backbone.trained or backbone.head_to_fit is not None:
        raise NotApplicableError(
            f"backbone '{config}' has no weights, and a detector needs a trained network — train it (python -m "
            "openbench train), load the weights into a torch.nn.Module and pass that"
        )
    return backbone, {**node, NAME: config}


def network_of(
    model: Any, options: ModelOptions, images: Split, classes: tuple[str, ...]
) -> tuple[Backbone, Mapping[str, Any]]:
    """Return a user's model, or the backbone that it names, ready for images, and its config of openbench's if any.

    Args:
        model: a name, a torch.nn.Module, a backbone, a function of normalised images, or the path of an ONNX file;
            None = the images are rows of features.
        options: options of the user for it.
        images: ID images to try it on.
        classes: names of the classes; empty if they are not known.

    Raises:
        ConfigError: something else, or parts that are not found.
    """
    check_is_no_weights(model)
    if is_name(model):
        options.refuse(f"'{model}', whose config has it")
        backbone, node = backbone_by_name(model, classes)
        return backbone.to(options.device), node
    if model is None:
        d, head = len(images.items[0]), options.head if isinstance(options.head, Head) else None
        if head is not None and head.weight.shape[1] != d:
            raise DataError(f"head: W has {head.weight.shape[1]} columns for {d} features — the same expected")
        return Rows(options.name or "features", d, head=head).to(options.device), {}
    model = loaded(model)
    few = some_of(images)
    side = int(min(few.items[0].shape[:2]))  # for transforms that do not resize: nothing but normalising
    task = ImageTask(few, classes or _anonymous(model, images), Preprocess(resize=side, crop=side))
    wrapped = wrap(model, options, task)
    # The node of a user's model only describes it.
    return wrapped.backbone, {} if "architecture" in wrapped.node else wrapped.node


def check_fits(backbone: Backbone, method: Method, name: str) -> None:
    """Check that a network gives everything that a method reads.

    Raises:
        NotApplicableError: it does not; or the method reads corrupted copies, which are drawn by the names of images.
    """
    if any(leaf.request.corruption is not None for leaf in leaves(method)):
        raise NotApplicableError(
            f"method '{name}' reads corrupted copies of images, drawn by their names in a benchmark, and the images of "
            "a detector have no names — choose the method that it averages, e.g. mcm"
        )
    if not backbone.classifies and (read := read_of_classifier(backbone, method)):
        raise NotApplicableError(
            f"method '{name}' reads {', '.join(read)}, and model '{backbone.name}' has no classifier — pass one, "
            "head=(W, b), or choose a method that reads features only, e.g. knn or mds"
        )
    refuse_missing_parts(backbone, method, name)


def _anonymous(model: object, images: Split) -> tuple[str, ...]:
    """Return class numbers as names, as many as there are in the labels or the last linear layer."""
    count = int(images.labels.max()) + 1 if len(images.labels) else 0
    if isinstance(model, nn.Module):
        linear = [part.out_features for part in model.modules() if isinstance(part, nn.Linear)]
        count = max([count, *linear[-1:]])
    return tuple(str(label) for label in range(max(count, 1)))


def learns_from(method: Method) -> frozenset[Role]:
    """Return the roles of the images that a method learns from; a composite also reads ID validation.

    Args:
        method: unfitted.
    """
    roles = {leaf.request.fit_on for leaf in leaves(method)} | {method.request.fit_on}
    return frozenset(role for role in roles if role is not None)


def nothing() -> Split:
    """Return a split without images."""
    empty = np.zeros(0, np.int64)
    return Split("nothing", Role.ID_TRAIN, [], empty, [], (), "", 0, unread=True)
