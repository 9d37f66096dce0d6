"""The numbers that golden values are computed from: exact, few, and the same with every library and processor.

They are drawn as whole numbers from PCG64, whose raw output NumPy keeps for ever, and divided by powers of two. So no
random stream of torch and no rounding enters before a method does.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.anatomy import reduce_map
from openbench.backbones.network import NetworkBackbone
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Composite, LiveMethod, Method, StreamingMethod, leaves
from openbench.core.request import CLASSES as OF_CLASSES, Field, Request, Role, Texts
from openbench.digest import digest
from openbench.testing._toy import LAYERS, images_with, network_with

Array = NDArray[np.float64]
CLASSES, OWN, FREE = 4, 3, 4
D = CLASSES * OWN + FREE
TRAIN = 72
# What trainings add to a network: the shape of one sample's output.
OUTPUTS = {
    "confidence": (1, 1, 1),
    "second_head": (CLASSES, 1, 1),
    "rotations": (16, 1, 1),
    "turned": (CLASSES, 1, 1),
    "others": (2, 1, 1),
    "variance": (1, 1, 1),
    "members": (3, CLASSES, 1),
    "weighted_energy": (1, 1, 1),
}


def whole(seed: int, shape: tuple[int, ...], below: int) -> NDArray[np.int64]:
    """Whole numbers from 0 to `below` − 1."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return ((raw >> np.uint64(33)) % np.uint64(below)).astype(np.int64).reshape(shape)


def even(seed: int, shape: tuple[int, ...]) -> Array:
    """Multiples of 2⁻¹⁴ in [0, 1)."""
    return whole(seed, shape, 2**14) / 2**14


def bell(seed: int, shape: tuple[int, ...]) -> Array:
    """Multiples of 2⁻¹⁶ around 0 with a standard deviation of 1.01."""
    return (even(seed, (4, *shape)).sum(axis=0) - 2) * 1.75


def single(x: Array) -> Tensor:
    """A float32 tensor; the numbers above fit into it."""
    return torch.tensor(np.asarray(x, dtype=np.float32))


class GoldenTexts(Mapping[Texts, Tensor]):
    """Any corpus: the classes near the rows of the head, 30 words of which every third is near a class."""

    def __init__(self, weight: Array) -> None:
        self.weight = weight

    def __getitem__(self, texts: Texts) -> Tensor:
        classes, seed = texts.words == OF_CLASSES, int(digest(texts), 16) % 2**31
        rows = np.arange(CLASSES if classes else 30)
        near = (texts.tower == "text") & (np.full(len(rows), classes) | (rows % 3 == 0))
        found = np.where(near[:, None], 2 * self.weight[rows % CLASSES] + bell(seed, (len(rows), D)) / 8, 0)
        found += ~near[:, None] * (bell(seed + 1, (len(rows), D)) + 0.5)
        return single(found / np.sqrt((found**2).sum(axis=1, keepdims=True)))

    def __iter__(self) -> Iterator[Texts]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class Problem:
    """What a method is fitted on and scores, and the head that made the logits."""

    train: FeatureSet
    val: FeatureSet
    test: FeatureSet
    head: Head

    def for_fit(self, request: Request) -> FeatureSet | None:
        """What `fit` is given."""
        split = {Role.ID_TRAIN: self.train, Role.ID_VAL: self.val, None: None}[request.fit_on]
        return None if split is None else _declared(split, request)


def problem(kind: str) -> Problem:
    """Four classes with features of their own.

    Args:
        kind: `plain` has features ≥ 0, and three samples of the last class. `signed` has features of both signs. `odd`
            is plain with a zero vector, twins and columns of zeros among the training samples, one sample of the last
            class, and a sample to score that has nothing in common with any.
    """
    owned = np.zeros((CLASSES, D))
    for c in range(CLASSES):
        owned[c, OWN * c : OWN * (c + 1)] = 1
    weight = owned / 2 - 1 / 8 + np.round(bell(1, (CLASSES, D)) * 2**6) / 2**11
    head = Head(single(weight), single(np.round(bell(2, (CLASSES,)) * 2**6) / 2**9), texts=GoldenTexts(weight))
    signed = kind == "signed"
    last = 1 if kind == "odd" else 3
    labels = np.concatenate([np.arange(TRAIN - last) % (CLASSES - 1), np.full(last, CLASSES - 1)])
    labels = labels[np.argsort(whole(3, (TRAIN,), 2**30), kind="stable")]
    train = _known(labels, 10, signed)
    if kind == "odd":
        train[4] = 0
        train[9] = train[8]
        train[:, [2, D - 1]] = 0
    val = np.arange(24) % CLASSES
    tested = _tested(train, labels, signed)
    if kind == "odd":
        # At a right angle to all that was seen in training: the zero vector is the nearest.
        tested[3] = 0
        tested[3, [2, D - 1]] = 0.5, 0.25
    # Two classes that share the first place, and a row without any preference.
    logits = _logits(tested, head)
    logits[6], logits[7] = (2, 2, 1, -1), 0
    return Problem(
        _columns(train, _logits(train, head), labels, 20),
        _columns(_known(val, 30, signed), _logits(_known(val, 30, signed), head), val, 40),
        _columns(tested, logits, None, 50),
        head,
    )


def _known(labels: NDArray[np.int64], seed: int, signed: bool) -> Array:
    owned = labels[:, None] == np.minimum(np.arange(D) // OWN, CLASSES)[None]
    found = owned * (3 + bell(seed, owned.shape) / 2) + bell(seed + 1, owned.shape) * 0.375
    return found - 0.5 if signed else np.maximum(found, 0)


def _tested(train: Array, labels: NDArray[np.int64], signed: bool) -> Array:
    """Ten samples: three known, three unknown, two with odd logits, a zero, and one of the training set."""
    known = _known(np.array([0, 1, 3]), 60, signed)
    unknown = bell(70, (5, D)) * np.where(np.arange(D) < D - FREE, 0.5, 1)
    unknown[1] *= 16
    unknown = unknown if signed else np.maximum(unknown, 0)
    return np.concatenate([known, unknown, np.zeros((1, D)), train[11:12]])


def _logits(features: Array, head: Head) -> Array:
    """Exact in double precision, whatever the order of the sums: a few dozen bits."""
    return features @ head.weight.double().numpy().T + head.bias.double().numpy()


def _columns(features: Array, logits: Array, labels: NDArray[np.int64] | None, seed: int) -> FeatureSet:
    n = len(features)
    columns = {
        Field.FEATURES: single(features),
        Field.LOGITS: single(logits),
        Field.PERTURBED: single(features + even(seed, (n, D)) / 4),
        Field.MIXED: single(features * (0.5 + even(seed + 30, (n, D)) / 2)),
        Field.PATCHES: single(features[:, None] * (0.25 + even(seed + 20, (n, 3, D)))).half(),
    }
    if labels is not None:
        columns[Field.LABELS] = torch.from_numpy(labels)
    maps = {
        layer: single(features[:, :, None, None] * (0.5 + even(seed + 1 + i, (n, D, 2, 2))))
        for i, layer in enumerate(LAYERS)
    }
    outputs = {name: single(bell(seed + 6 + i, (n, *shape))) for i, (name, shape) in enumerate(OUTPUTS.items())}
    outputs["variance"] = outputs["variance"].abs()
    outputs["others"] = -outputs["others"].abs()
    return FeatureSet(columns, {**maps, **outputs})


def _declared(x: FeatureSet, request: Request) -> FeatureSet:
    columns = {name: column for name, column in x.columns.items() if name in request.fields}
    return FeatureSet(columns, {layer: reduce_map(x.maps[layer], request.pool) for layer in request.layers})


def network(head: Head) -> NetworkBackbone:
    """A network that finds the features of an image, and has maps that are not flat."""
    backbone = network_with(head)
    state: Mapping[str, Tensor] = backbone.module().state_dict()
    texture = {name: single(0.5 + even(90, tuple(t.shape))) for name, t in state.items() if name.endswith("texture")}
    return backbone.load_state({**state, **texture}, "golden")


def fitted(method: Method, data: Problem) -> Method:
    """A method fitted on what it declares."""
    if isinstance(method, Composite):
        return method.fit_parts(lambda part: fitted(part, data), lambda part: scored(part, data.val, data))
    request = method.request
    return method.fit(data.for_fit(request), data.head if request.head else None)


def scored(method: Method, x: FeatureSet, data: Problem) -> Tensor:
    """The scores (n,) of samples; a live method gets images of which the network finds the features."""
    if isinstance(method, LiveMethod):
        return method.score_images(images_with(x.features), network(data.head))
    apart = any(isinstance(leaf, LiveMethod) or leaf.request.corruption for leaf in leaves(method))
    if isinstance(method, Composite) and apart:
        return method.combine({name: scored(part, x, data) for name, part in method.fitted_parts.items()})
    return method.score(_declared(x, method.request).without_labels())


def streamed(method: StreamingMethod[Any], data: Problem) -> Tensor:
    """The scores (n,) of a stream of the validation samples and those to score, in batches of ten."""
    fitted = method.fit(data.for_fit(method.request), data.head if method.request.head else None)
    parts = [_declared(split, method.request).without_labels() for split in (data.val, data.test)]
    x = FeatureSet({name: torch.cat([part.columns[name] for part in parts]) for name in parts[0].columns})
    memory = fitted.memory()
    return torch.cat([fitted.score_next(rows, memory) for rows in x.batches(10)])


def by_class(method: Method, x: FeatureSet) -> Tensor | None:
    """The class scores (n, c) of samples, if the method has such; with probabilities beside them, if it has these."""
    if isinstance(method, Composite):
        return None
    found = method.class_scores(_declared(x, method.request).without_labels())
    if found is None:
        return None
    probabilities = method.class_probabilities(found)
    return found if probabilities is None else torch.cat([found, probabilities], dim=1)
