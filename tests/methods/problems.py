"""Random but realistic problems for parity tests, and the same arrays in float64 for references written in NumPy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from openbench.backbones.cifar import resnet
from openbench.backbones.network import NetworkBackbone
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Role
from openbench.testing._toy import PlantedTexts, copied

Array = NDArray[np.float64]
STD = (0.2, 0.3, 0.4)  # of the pixels of a small network
KINDS = ("rectified", "signed", "hot", "two_classes", "many_classes", "dead")


@dataclass(frozen=True)
class Problem:
    """Splits whose logits are the head's and whose labels are wrong for every tenth sample."""

    train: FeatureSet
    val: FeatureSet
    test: FeatureSet
    head: Head

    # References ask for a row of it at a time, in their innermost loop.
    @cached_property
    def weight(self) -> Array:
        return _fixed(self.head.weight)

    @cached_property
    def bias(self) -> Array:
        return _fixed(self.head.bias)


def _fixed(values: Tensor) -> Array:
    """In float64; to be read alone, by all that share it."""
    found = values.double().numpy()
    found.flags.writeable = False
    return found


def f(x: FeatureSet) -> Array:
    return x.features.double().numpy()


def z(x: FeatureSet) -> Array:
    return x.logits.double().numpy()


def y(x: FeatureSet) -> NDArray[np.int64]:
    return x.labels.numpy()


def given(**columns: ArrayLike) -> FeatureSet:
    """Columns by their names, in single precision where they are not integers."""
    tensors = {Field(name): torch.as_tensor(column) for name, column in columns.items()}
    return FeatureSet({name: x.float() if x.is_floating_point() else x for name, x in tensors.items()})


def changed(x: FeatureSet, **columns: ArrayLike) -> FeatureSet:
    """The same samples with other columns."""
    return replace(x, columns={**x.columns, **given(**columns).columns})


def problem(kind: str = "rectified", n: int = 600) -> Problem:
    """A problem of d = 24 features, with columns that may be written to.

    Args:
        kind: `rectified` (C = 6, features ≥ 0), `signed` (not rectified), `hot` (logits × 30: float32 softmax
            saturates), `two_classes`, `many_classes` (C = 400: most have no sample or one), `dead` (four constant and
            three duplicated features).
        n: samples per split.
    """
    drawn = _drawn(kind, n)
    return Problem(*map(copied, (drawn.train, drawn.val, drawn.test)), drawn.head)


@cache
def _drawn(kind: str, n: int) -> Problem:
    c = {"two_classes": 2, "many_classes": 400}.get(kind, 6)
    rng = np.random.default_rng(0)
    centres = 1.2 * rng.normal(size=(c, 24)) + 0.5
    scale = 30 if kind == "hot" else 1
    weight = torch.tensor(scale * 0.4 * (centres - centres.mean(axis=0)), dtype=torch.float32)
    bias = torch.tensor(scale * 0.3 * rng.normal(size=c), dtype=torch.float32)
    head = Head(weight, bias, texts=PlantedTexts(weight))

    def split() -> FeatureSet:
        # Class 3 has no samples (where there are more than two classes).
        labels = rng.choice([k for k in range(c) if k != 3], size=n)
        features = centres[labels] + rng.normal(size=(n, 24)) * np.linspace(0.3, 1.5, 24)
        if kind != "signed":
            features = features.clip(min=0)
        if kind == "dead":
            features[:, :4] = (0.0, 0.7, 0.0, 0.1)
            features[:, 20:23] = features[:, 10:13]
        wrong = rng.random(n) < 0.1
        labels[wrong] = rng.choice(np.unique(labels), size=wrong.sum())
        columns = torch.tensor(features, dtype=torch.float32)
        found = {Field.FEATURES: columns, Field.LOGITS: head(columns), Field.LABELS: torch.from_numpy(labels)}
        found[Field.MIXED] = (columns + columns.flip(0)) / 2
        # Each of three patches sees its own third of the dimensions best.
        seen = 0.1 + (torch.arange(24) % 3 == torch.arange(3)[:, None]).float()
        found[Field.PATCHES] = torch.nn.functional.normalize(columns[:, None] * seen, dim=2).half()
        return FeatureSet(found)

    return Problem(split(), split(), split(), head)


def fitted_on(method: Method, data: Problem) -> FeatureSet | None:
    """The split that a method is fitted on."""
    return {None: None, Role.ID_TRAIN: data.train, Role.ID_VAL: data.val}[method.request.fit_on]


def scores(method: Method, data: Problem) -> Array:
    """Fit as declared and score the test split, (n,) float64."""
    request = method.request
    if (train := fitted_on(method, data)) is not None:
        train = replace(train, columns={k: v for k, v in train.columns.items() if k in request.fields})
    fitted = method.fit(train, data.head if request.head else None)
    columns = {k: v for k, v in data.test.columns.items() if k in request.fields and k != Field.LABELS}
    return fitted.score(FeatureSet(columns)).double().numpy()


def equals(
    *methods: Method,
    kinds: Sequence[str] = KINDS,
    n: int = 300,
    many: int = 0,
    rtol: float = 1e-5,
    make: Callable[[str, int], "Problem"] = lambda kind, n: problem(kind, n),
) -> Callable[[Callable[[Problem, Any], ArrayLike]], Callable[..., None]]:
    """Make a formula a test: of a problem and a fitted method, it returns what the first test samples score.

    A formula sees fifty of them, which the method scores among all.

    Args:
        methods: each is tested on each kind of problem.
        kinds: of problems.
        n: samples of each split.
        many: of those with many classes, where it is not the same number.
        rtol: of the comparison.
        make: makes the problems, of a kind and a number of samples.
    """

    def decorate(formula: Callable[[Problem, Any], ArrayLike]) -> Callable[..., None]:
        @pytest.mark.parametrize("kind", kinds)
        @pytest.mark.parametrize("method", methods, ids=repr)
        def test(kind: str, method: Method) -> None:
            data = make(kind, many if many and kind == "many_classes" else n)
            found = scores(method, data)
            expected = formula(replace(data, test=data.test[:50]), method)
            assert_equal(found[: len(expected)], expected, rtol)

        return test

    return decorate


def kinds_but(*left_out: str) -> list[str]:
    return [kind for kind in KINDS if kind not in left_out]


def head_gradients(data: Problem, loss: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """By autograd in float64: the weight's and the bias' gradient of the loss of each test sample's logits."""
    layer = torch.nn.Linear(24, data.head.num_classes).double()
    layer.load_state_dict({"weight": data.head.weight, "bias": data.head.bias})
    for row in data.test.features.double():
        layer.zero_grad()
        loss(layer(row)).backward()
        yield layer.weight.grad, layer.bias.grad


def worded(seed: int = 0, d: int = 24, n: int = 50, **counts: int) -> tuple[dict[str, Array], Array]:
    """Directions of so many texts of each list, and images (n, d), in a cone as those of real towers."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=d)
    texts = {name: unit(rng.normal(size=(count, d)) + centre) for name, count in counts.items()}
    return texts, rng.normal(size=(n, d)) + centre


def fitted_on_texts(method: Method, texts: Mapping[str, Array]) -> Method:
    """Fitted on what the text tower makes of the lists that the method asks for."""
    made = {t: torch.tensor(texts[t.words], dtype=torch.float32) for t in method.request.texts}
    return method.fit(None, Head(torch.ones(3, texts["classes"].shape[1]), torch.zeros(3), texts=made))


def assert_equal(found: ArrayLike, expected: ArrayLike, rtol: float = 1e-5) -> None:
    """Equal to `rtol` relative to each value, and for values near zero to a tenth of that relative to the largest."""
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=0.1 * rtol * largest)


def unit(x: ArrayLike) -> Array:
    """Rows of length one."""
    rows = np.asarray(x)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def on_sphere(data: Problem) -> Problem:
    """The same directions at length one."""
    train, val, test = (changed(x, features=unit(f(x))) for x in (data.train, data.val, data.test))
    return Problem(train, val, test, data.head)


def without_dead(x: FeatureSet) -> FeatureSet:
    """Of a problem of the kind `dead`: the features that vary, once each."""
    return changed(x, features=x.features[:, [*range(4, 20), 23]])


def logits_after_step(
    network: NetworkBackbone, images: Tensor, loss: Callable[[Tensor], Tensor], epsilon: float
) -> Array:
    """In float64: of images moved one signed step down the gradient of a loss of their logits."""
    module = network.module().double().eval()
    x = images.double().requires_grad_(True)
    loss(module(x)).backward()
    step = torch.where(x.grad >= 0, 1.0, -1.0) / torch.tensor(STD).view(1, 3, 1, 1)
    with torch.no_grad():
        moved = module(x - epsilon * step).numpy()
    module.float()
    return moved


def small_network() -> NetworkBackbone:
    """A ResNet of three stages and four classes with random weights, for images of 8 pixels a side."""
    backbone = resnet("toy", "resnet8", num_classes=4, preprocess=Preprocess(8, 8, std=STD)).initialise(0)
    return backbone.load_state(backbone.module().state_dict(), "random")
