"""Post-hoc methods, which turn cached tensors into OOD scores.

Besides the contract: composites of other scores; live methods, which run the network themselves where cached columns
are not enough; and streaming methods, which learn from the test images that they have scored.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.config.constraints import Checked, Count, Positive, Seed
from openbench.config.overrides import STREAM
from openbench.core.features import FeatureSet, Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request, Role
from openbench.errors import ConfigError, MethodError, NotFittedError, OpenbenchError
from openbench.public import name_of
from openbench.source import foreign_sources, uncommitted

if TYPE_CHECKING:
    from openbench.core.search import SearchContext, Tuned

M = TypeVar("M")
_BLOCK = 512  # rows reshaped at a time
LARGEST = 1e15  # of training features: a million squares of it add up to less than float32's largest number
MOST_CLASSES = 1_000_000  # where neither head nor logits say how many there are; a mean is kept for each
_AT_ONCE = 4096  # rows compared at a time


def check_finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `score` or `class_scores`, wrapped so that it refuses empty input and rows that are NaN or infinite."""

    @wraps(function)
    def on_finite(self: Any, x: FeatureSet, *args: Any, **rest: Any) -> Any:
        where = f"{type(self).__name__}.{function.__name__}"
        for name, column in x.named().items():
            if not column.numel():
                raise MethodError(f"{where}: no rows to score — at least one is needed")
            _refuse_not_finite(name, column, where)
        return function(self, x, *args, **rest)

    return on_finite


def check_training(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fit`, wrapped so that it refuses training sets from which nothing can be learnt.

    It refuses a set without rows, values that are NaN, infinite or beyond 1e15, rows that are all equal, and labels
    that are not classes of the head (of the logits where there is no head).
    """

    @wraps(function)
    def on_training(self: Any, train: FeatureSet | None, *args: Any, **rest: Any) -> Any:
        if train is not None:
            where = f"{type(self).__name__}.fit"
            if not len(train):
                raise MethodError(f"{where}: the training set has no rows — at least one is needed")
            _check_columns(train, self.request, where)
            _check_labels(train, args[0] if args else rest.get("head"), where)
        return function(self, train, *args, **rest)

    return on_training


def _check_columns(x: FeatureSet, request: Request, where: str) -> None:
    """Check the columns and maps that a request names and that are present."""
    columns = {str(name): x.columns[name] for name in request.fields - {Field.LABELS} if name in x.columns}
    columns |= {layer: x.maps[layer] for layer in request.layers if layer in x.maps}
    for name, column in columns.items():
        least, most = map(float, column.aminmax())
        reached = max(abs(least), abs(most))
        if not math.isfinite(reached):
            _refuse_not_finite(name, column, where)
        if reached > LARGEST:
            raise MethodError(f"{where}: training {name} reach {reached:.3g}, allowed: {LARGEST:g} — check the network")
    if columns and all(bool((rows == c[:1]).all()) for c in columns.values() for rows in torch.split(c, _AT_ONCE)):
        raise MethodError(f"{where}: all training {' and '.join(sorted(columns))} are equal — check the network")


def _check_labels(train: FeatureSet, head: Head | None, where: str) -> None:
    labels = train.columns.get(Field.LABELS)
    if labels is None:
        return
    if int(labels.min()) < 0:
        raise MethodError(f"{where}: label {int(labels.min())} — allowed: classes from 0")
    if head is not None:
        classes, of = head.num_classes, "the head's classes"
    elif Field.LOGITS in train:
        classes, of = train.logits.shape[1], "the logits' classes"
    else:
        classes, of = MOST_CLASSES, "classes"
    if int(labels.max()) >= classes:
        raise MethodError(f"{where}: label {int(labels.max())} — allowed: {of}, 0 to {classes - 1}, as in training")


def _refuse_not_finite(name: str, column: Tensor, where: str) -> None:
    # A finite sum shows that all values are finite; an infinite one may also be an overflow, so rows are checked then.
    if not column.is_floating_point() or math.isfinite(column.sum().item()):
        return
    bad = ~column.isfinite().reshape(len(column), -1).all(dim=1)
    if bool(bad.any()):
        first = int(torch.nonzero(bad)[0])
        raise MethodError(
            f"{where}: {int(bad.sum())} of {len(column)} rows of '{name}' are not finite (first: row {first})"
        )


class Method(Checked, ABC):
    """A post-hoc OOD score: larger = more out-of-distribution.

    Concrete classes are final `@dataclass`es whose fields are the hyper-parameters, stored verbatim; state learnt by
    `fit` lives in attributes whose names end in `_`. A method never sees a model, a loader or a config.
    """

    error: ClassVar[type[OpenbenchError]] = MethodError
    needs: ClassVar[Request] = Request()
    reference: ClassVar[str]
    version: ClassVar[int] = 1  # raised by every change that moves scores: it enters the run id
    # Hyper-parameters that `fit` does not read: a search fits once for all their values.
    read_by_score: ClassVar[frozenset[str]] = frozenset()
    # In words, the objects that `fit` learns which are not numbers or tensors: a detector cannot save them.
    learns_objects: ClassVar[str] = ""
    # Whether `search` reads which predictions of the network are right.
    search_reads_predictions: ClassVar[bool] = False

    def __init_subclass__(cls, **rest: Any) -> None:
        """Check what the methods of a subclass are given."""
        super().__init_subclass__(**rest)
        checks = {"fit": check_training, **dict.fromkeys(("score", "score_next", "class_scores"), check_finite)}
        for name, check in checks.items():  # of the methods that it defines itself: inherited ones are checked already
            if inspect.isfunction(function := vars(cls).get(name)):
                setattr(cls, name, check(function))

    @property
    def request(self) -> Request:
        """What this instance needs; differs from `needs` only where a hyper-parameter enters (ODIN's T and ε)."""
        return self.needs

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn from the split named by `request.fit_on`; return self. The default has nothing to learn.

        Args:
            train: the declared columns of that split with labels, or None if `fit_on` is None.
            head: the classifier, or None if not declared.
        """
        return self

    @abstractmethod
    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32 of `x`, independent of batch size and order; larger = more OOD.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
            MethodError: no rows, or a row that is NaN or infinite.
        """

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return (n, c) float32, how badly each class fits, larger = worse; None if the method has no such form.

        Prediction sets are made from it. It is the class-conditional form s(x, y) of the score, e.g. 1 − p_y for MSP.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
        """
        return None

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the probabilities (n, c) behind class scores (n, c); None if these are not made of probabilities.

        Prediction sets need probabilities: these, or the softmax of the negative scores.
        """
        return None

    @property
    def own_space(self) -> Mapping[str, Sequence[Any]]:
        """Hyper-parameter → values that tuning tries where the config has no `_space_`."""
        return {}

    def search(self, space: Mapping[str, Sequence[Any]], context: "SearchContext") -> "Tuned | None":
        """Return the outcome of the method's own search; None (the default) = take the highest validation AUROC.

        Args:
            space: hyper-parameter → values to try.
            context: what the search may touch.
        """
        return None

    def params(self) -> dict[str, object]:
        """The hyper-parameters by name, as given."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def learnt(self, name: str) -> Tensor:
        """Return the learnt tensor `name`, or raise NotFittedError."""
        value: Tensor | None = getattr(self, name, None)
        if value is None:
            raise NotFittedError(f"{type(self).__name__}.score called before fit — call fit(train, head) first")
        return value


class SoftmaxMethod(Method):
    """A score of logits that the method makes, their negative energy; a class fits as badly as 1 − their softmax."""

    @abstractmethod
    def _class_logits(self, x: FeatureSet) -> Tensor:
        """The logits (n, c)."""

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -torch.logsumexp(self._class_logits(x), dim=1)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax of the method's logits, (n, c) float32."""
        return (1 - torch.softmax(self._class_logits(x), dim=1)).float()

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the softmax of the method's logits, (n, c)."""
        return 1 - scores


class HeadMethod(SoftmaxMethod):
    """Reshapes features, then scores by the energy of the head's logits: −log Σ exp(W r(f) + b)."""

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)

    @abstractmethod
    def reshape(self, features: Tensor) -> Tensor:
        """Return the reshaped features (n, d); the argument is not changed."""

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the head."""
        if head is None:
            raise MethodError(f"{type(self).__name__} needs the classifier head — pass head=Head(W, b)")
        self.head_ = head
        return self

    def _class_logits(self, x: FeatureSet) -> Tensor:
        head: Head = self.learnt("head_")  # type: ignore[assignment]
        features = x.features
        if len(features) <= _BLOCK:
            return head(self.reshape(features))
        # Reshaped features of all rows at once would leave the processor's cache.
        return torch.cat([head(self.reshape(rows)) for rows in torch.split(features, _BLOCK)])


class Composite(Method):
    """Combines the scores of independent methods.

    `fit_parts` fits a fresh copy of each part on the split that the part names. `learn` then gets the fitted parts'
    scores of ID validation, e.g. to standardise them. It sees no labels and no OOD samples.
    """

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Method]:
        """The parts by name, as given: unfitted."""

    @abstractmethod
    def learn(self, id_val: Mapping[str, Tensor]) -> Self:
        """Learn from the fitted parts' scores (n,) of ID validation; return self."""

    @abstractmethod
    def combine(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Return the scores (n,) float32 made of the parts' scores (n,); larger = more OOD."""

    @property
    def request(self) -> Request:
        """Everything that the parts read; where they read different inputs, the engine scores them one by one."""
        requests = [leaf.request for leaf in leaves(self)]
        return replace(
            next((r for r in requests if r.layers), requests[0]),
            fields=frozenset().union(*(r.fields for r in requests)),
            fit_on=Role.ID_VAL,
            head=any(r.head for r in requests),
            layers=tuple(dict.fromkeys(layer for r in requests for layer in r.layers)),
            second_pass=next((r.second_pass for r in requests if r.second_pass), None),
            texts=tuple(dict.fromkeys(texts for r in requests for texts in r.texts)),
            corruption=None,
            mixing=next((r.mixing for r in requests if r.mixing), None),
        )

    @property
    def fitted_parts(self) -> Mapping[str, Method]:
        """The fitted copies of the parts.

        Raises:
            NotFittedError: before `fit_parts`.
        """
        parts: Mapping[str, Method] | None = getattr(self, "parts_", None)
        if parts is None:
            raise NotFittedError(f"{type(self).__name__} used before its parts were fitted — call fit_parts first")
        return parts

    def fit_parts(self, fit: Callable[[Method], Method], score: Callable[[Method], Tensor]) -> Self:
        """Fit the parts, then learn from their scores of ID validation; return self.

        Args:
            fit: fits an unfitted method on the split that it names and returns it.
            score: returns the scores (n,) of ID validation by a fitted method.
        """
        self.parts_ = {name: fit(type(part)(**part.params())) for name, part in self.parts.items()}
        return self.learn({name: score(part) for name, part in self.parts_.items()})

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Refuse: one split cannot serve parts that name different ones.

        Raises:
            MethodError: always.
        """
        raise MethodError(f"{type(self).__name__}.fit: each part is fitted on its own split — call fit_parts")

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32 of samples that have every part's columns; larger = more OOD.

        Raises:
            MethodError: parts read differently pooled maps or different inputs, which do not fit in one FeatureSet.
        """
        requests = [leaf.request for leaf in leaves(self)]
        pools = {request.pool for request in requests if request.layers}
        second_passes = {request.second_pass for request in requests} - {None}
        inputs = {(request.perturb, request.corruption) for request in requests}
        if len(pools) > 1 or len(second_passes) > 1 or len(inputs) > 1:
            raise MethodError(f"{type(self).__name__}.score: its parts read different inputs — run it in the engine")
        return self.combine({name: part.score(x) for name, part in self.fitted_parts.items()})


def leaves(method: Method) -> Iterator[Method]:
    """Yield the methods that read columns: a composite's parts and their parts, or the method itself."""
    if isinstance(method, Composite):
        for part in method.parts.values():
            yield from leaves(part)
    else:
        yield method


def version_of(method: Method) -> int:
    """Return a method's version; a composite's version rises with that of any part."""
    parts = method.parts.values() if isinstance(method, Composite) else ()
    return type(method).version + sum(version_of(part) - 1 for part in parts)


@dataclass(frozen=True)
class Outputs:
    """The outputs of one batch, on the backbone's device.

    Args:
        logits: (n, c) float32.
        features: (n, d) float32, penultimate, after pooling; head(features) = logits.
        maps: layer → reduced map, only the layers requested.
        patches: (n, p, d) float16, unit features of image patches; None unless they were requested.
    """

    logits: Tensor
    features: Tensor
    maps: Mapping[str, Tensor]
    patches: Tensor | None = None


class LiveBackbone(Protocol):
    """The part of a backbone that a live method may use; every backbone has it."""

    name: str
    num_classes: int
    layers: tuple[str, ...]
    preprocess: Preprocess

    @property
    def head(self) -> Head:
        """The classifier as a linear head on CPU."""

    @property
    def device(self) -> torch.device:
        """Where the network is."""

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """What `request` names for normalised images (n, 3, h, w), without gradients."""

    def frozen(self) -> AbstractContextManager[torch.nn.Module]:
        """The network in eval mode, without parameter gradients; the caller may take gradients by images and set hooks.

        Raises:
            NotApplicableError: there is no network.
        """

    def changing(self, layer: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """While open, the layers after `layer` receive its map (n, c, h, w) as `change` returns it.

        Raises:
            NotApplicableError: there is no such layer.
        """


class LiveMethod(Method):
    """A score of images, made by running the network; larger = more out-of-distribution.

    For scores that neither cached columns nor a declared input step can express: several steps, a gradient that depends
    on what was fitted, a change inside the network. It costs passes in every run with new hyper-parameters, so a score
    of features or maps should be a Method. Only its scores are cached: per network, images, class, version,
    hyper-parameters, the split that `fit` saw, and the source of a class that openbench does not ship. `fit` reads
    cached columns as in any method; `needs` says which.
    """

    needs: ClassVar[Request] = Request(fields=frozenset())
    fitted_on_: str = ""  # digest of the split that `fit` saw, noted by the engine

    @abstractmethod
    def score_images(self, images: Tensor, backbone: LiveBackbone) -> Tensor:
        """Return the scores (n,) float32 of a batch, independent of batch size and order; larger = more OOD.

        Args:
            images: (n, 3, h, w) normalised, on the backbone's device; not to be changed.
            backbone: the network; left as it was found.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
            NotApplicableError: the backbone lacks what the score needs.
        """

    def score(self, x: FeatureSet) -> Tensor:
        """Refuse: a live method scores images, not cached columns.

        Raises:
            MethodError: always.
        """
        raise MethodError(f"{type(self).__name__}.score: it scores images — call score_images(images, backbone)")

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return None: a live method has scores only."""
        return None

    def identity(self) -> dict[str, object]:
        """Everything besides network and images that the scores depend on; it names the cached scores.

        Raises:
            NotFittedError: there is something to fit, and the engine has not.
        """
        kind = type(self)
        if self.request.fit_on is not None and not self.fitted_on_:
            raise NotFittedError(f"{kind.__name__}: scored before it was fitted — call engine.evaluate.fit first")
        # The version identifies code that is shipped and committed; other code is identified by its source.
        made_from = {"sources": foreign_sources(self), "uncommitted": uncommitted(__name__, parts=(self,))}
        named = {"method": name_of(kind), "version": kind.version, "params": self.params()}
        return {**named, "fitted_on": self.fitted_on_, **{key: files for key, files in made_from.items() if files}}


@dataclass(frozen=True)
class StreamPlan(Checked):
    """What a stream holds and in which orders.

    Args:
        sets: `each`: a stream of ID test and one OOD set, for each of these; `all`: one stream of ID test and all.
        ood_per_id: OOD images per ID image; as many images as this allows are drawn from both, anew for each order.
            None takes all images of both.
        orders: of each stream; its images in a random order, with an empty memory at the beginning.
        seed: order i is drawn from seed and i.
    """

    named: ClassVar[str] = f"method.{STREAM}"

    sets: Literal["each", "all"] = "each"
    ood_per_id: Positive | None = None
    orders: Count = 5
    seed: Seed = 0

    def order(self, id_images: int, ood_images: int, number: int) -> NDArray[np.int64]:
        """Return the images of order `number`, ID ones as 0 to id_images − 1, OOD ones from there on.

        Raises:
            ConfigError: the ratio leaves no image of a side.
        """
        rng = np.random.default_rng([self.seed, number])
        inside, outside = np.arange(id_images), np.arange(id_images, id_images + ood_images)
        if self.ood_per_id is not None:
            n = min(id_images, int(ood_images / self.ood_per_id))
            m = min(ood_images, round(n * self.ood_per_id))
            if not n or not m:
                raise ConfigError(
                    f"{self.named}.ood_per_id — found {self.ood_per_id:g}, which leaves no image of one side"
                )
            inside, outside = rng.choice(inside, n, replace=False), rng.choice(outside, m, replace=False)
        return rng.permutation(np.concatenate([inside, outside]))


class StreamingMethod(Method, Generic[M]):
    """An OOD score of the images of a stream, in their order: larger = more out-of-distribution.

    The score of an image may depend on the images before it and on itself, never on a later one; how the stream is cut
    into batches changes nothing. All that is learnt from the stream is in a memory that `memory` makes and `score_next`
    changes, so that a fitted method is the same after a stream as before, and each stream begins with an empty memory.

    The engine scores streams as `_stream_` in the method's config says (`StreamPlan`); nothing is tuned, and such
    scores are not ranked with others.
    """

    @abstractmethod
    def memory(self) -> M:
        """Return an empty memory, with which a stream begins.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
        """

    @abstractmethod
    def score_next(self, x: FeatureSet, memory: M) -> Tensor:
        """Return the scores (n,) float32 of the next n images of a stream, and put into the memory what they teach.

        Raises:
            NotFittedError: before `fit`, where there is something to fit.
            MethodError: no rows, or a row that is NaN or infinite.
        """

    def score(self, x: FeatureSet) -> Tensor:
        """Refuse: the score of an image depends on those before it.

        Raises:
            MethodError: always.
        """
        raise MethodError(
            f"{type(self).__name__}.score: its scores depend on the images before — call score_next(images, memory)"
        )
