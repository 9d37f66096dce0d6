"""How much a method learns, measured: it is fitted on noise of the shape of a benchmark's features."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from openbench.api.methods import as_node
from openbench.core.composite import leaves
from openbench.core.features import FeatureSet, Head
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field, Role
from openbench.detect.artefact.state import packed_method
from openbench.detect.recommend.face import method_of
from openbench.errors import OpenbenchError

_MB = 1e6
_LEAST = 1200  # images in the smaller of two fits: no method looks for more than 1000 neighbours
_MOST = 2**23  # numbers in its features
_HUGE = 2**26  # numbers in a matrix for each class, beyond which only fits of these few classes are made
_CLASSES = (10, 20)
_MADE = frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS})


@dataclass(frozen=True)
class Shape:
    """What a method is fitted on.

    Args:
        train: ID training images.
        val: ID validation images.
        width: of the features.
        classes: of the network.
    """

    train: int
    val: int
    width: int
    classes: int


def learnt_mb(name: str, params: Mapping[str, Any], shape: Shape) -> float | None:
    """Return what a method keeps when it is fitted, in 10⁶ bytes: a bank, means, a covariance; None if it is not known.

    It is fitted on two smaller sets of noise. What grows with their size grows in proportion, so the rest follows.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters.
        shape: what it is fitted on.
    """
    method = method_of(name, params)
    if method is None:
        return None
    try:
        sizes = [_learnt(leaf, shape) for leaf in leaves(method)]
    except OpenbenchError:  # objects that are no numbers, or noise from which it cannot learn
        return None
    known = [size for size in sizes if size is not None]
    return sum(known) / _MB if len(known) == len(sizes) else None


def _learnt(method: Method, shape: Shape) -> float | None:
    """Bytes that a method keeps; None where it learns from something else than features and logits."""
    request = method.request
    if request.fit_on is None and not request.head:
        return 0.0
    images = {None: 0, Role.ID_TRAIN: shape.train, Role.ID_VAL: shape.val}.get(request.fit_on)
    if images is None or method.learns_objects or isinstance(method, LiveMethod) or request.fields - _MADE:
        return None
    if Field.LABELS in request.fields and shape.classes * shape.width**2 > _HUGE:
        first, second = (_bytes(method, replace(shape, classes=c), max(_LEAST, 2 * shape.width)) for c in _CLASSES)
        of_class = (second - first) / (_CLASSES[1] - _CLASSES[0])
        if of_class > shape.width**2:  # bytes: it keeps a matrix for each class, beside which the rest is little
            return first + of_class * (shape.classes - _CLASSES[0])
    few = max(_LEAST, 2 * shape.width, 4 * shape.classes, min(images // 5, _MOST // shape.width))
    if images <= 2 * few:
        return float(_bytes(method, shape, images))
    first, second = (_bytes(method, shape, count) for count in (few, 2 * few))
    return first + (second - first) / few * (images - few)


def _bytes(method: Method, shape: Shape, images: int) -> int:
    """Bytes of what a method keeps of so many images, as a detector's file holds them."""
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(shape.classes, shape.width, generator=generator), torch.zeros(shape.classes))
    train = None
    if images:
        features = torch.relu(torch.randn(images, shape.width, generator=generator))
        columns = {
            Field.FEATURES: features,
            Field.LOGITS: head(features),
            Field.LABELS: torch.arange(images) % shape.classes,
        }
        read = method.request.fields | {Field.LABELS}
        train = FeatureSet({field: column for field, column in columns.items() if field in read})
    fitted = type(method)(**method.params()).fit(train, head if method.request.head else None)
    _, tensors = packed_method(fitted, as_node(method))
    return sum(tensor.nbytes for tensor in tensors.values())
