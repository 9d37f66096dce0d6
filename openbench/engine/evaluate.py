"""Fitting of methods on the declared split, and their scores, from cached features; streams in seeded orders."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Benchmark, Split
from openbench.core.features import DEFAULT_BATCH, FeatureSet, Head
from openbench.core.method import Composite, LiveMethod, Method, StreamingMethod, StreamPlan
from openbench.core.names import order_name
from openbench.core.record import Value
from openbench.core.request import Field, Mixing, Request, Role, Texts
from openbench.core.runtime import Runtime
from openbench.core.search import with_params
from openbench.digest import digest
from openbench.engine.provenance import Clock
from openbench.errors import ConfigError, DataError, MethodError, NotApplicableError
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.features.store import FeatureStore
from openbench.metrics.curve import auroc, fpr95

logger = logging.getLogger(__name__)

_BASE = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))


class FeatureSource:
    """A source of the columns of splits; the engine's is a feature store bound to one backbone."""

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        """Return the columns that `request` names, with labels if it names them."""
        raise NotImplementedError

    def texts(self, texts: Texts) -> Tensor:
        """Return the unit embeddings (m, d) of a corpus."""
        raise NotImplementedError

    def scores(self, method: LiveMethod, split: Split) -> NDArray[np.float32]:
        """Return the scores (n,) of a split by a fitted method that runs the network itself.

        Raises:
            NotApplicableError: the source has columns only.
        """
        raise NotApplicableError(f"method {type(method).__name__} runs the network itself, and here are only columns")

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        """Return the features (n, d) of a split's images, each mixed with one of `others`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Scoring:
    """How splits are scored.

    Args:
        features: source of the columns.
        device: of the computation.
        batch: rows per call of `score`.
    """

    features: FeatureSource
    device: torch.device
    batch: int = DEFAULT_BATCH


@dataclass(frozen=True)
class Fitting:
    """The data that `fit` may use: ID splits, the head, and OOD validation images to mix with.

    Args:
        id_train: for methods with `fit_on=ID_TRAIN`.
        id_val: for methods with `fit_on=ID_VAL`.
        head: the classifier.
        ood_val: for methods that read mixed images.
    """

    id_train: Split
    id_val: Split
    head: Head
    ood_val: Split | None = None

    @classmethod
    def of(cls, benchmark: Benchmark, head: Head) -> "Fitting":
        """Return the validation and ID training splits of a benchmark, with a head."""
        return cls(benchmark.id_train, benchmark.id_val, head, benchmark.ood_val)

    def split(self, role: Role) -> Split:
        """Return the split that plays `role` in fitting.

        Raises:
            ConfigError: methods cannot be fitted on that role.
            DataError: its images were not opened.
        """
        allowed = {Role.ID_TRAIN: self.id_train, Role.ID_VAL: self.id_val}
        if role not in allowed:
            raise ConfigError(f"a method cannot be fitted on '{role}' — allowed: {', '.join(allowed)}")
        if allowed[role].unread:
            raise DataError(f"split '{allowed[role].name}' ({role}) was not opened: no method declares it")
        return allowed[role]


def mixed_with(ood_val: Split | None) -> Split:
    """Return the OOD images that ID images are mixed with.

    Raises:
        ConfigError: there are none.
    """
    if ood_val is None:
        raise ConfigError(
            "the method learns from ID images mixed with OOD validation images, and there are none — choose another "
            "method, or a benchmark with ood_val"
        )
    return ood_val


def for_layers(method: Method, layers: Sequence[str]) -> Method:
    """Return a method with the backbone's stages in place of `layers=None`, which means every stage.

    Parts of a composite are changed likewise. A method that names its layers, or reads none, is returned unchanged.
    """
    present = [layer for layer in method.needs.layers if layer in layers]
    changes: dict[str, Any] = {
        name: for_layers(value, layers) for name, value in method.params().items() if isinstance(value, Method)
    }
    if present and method.params().get("layers", ()) is None:
        changes["layers"] = present
    return with_params(method, changes) if changes else method


def fit(method: Method, fitting: Fitting, features: FeatureSource, device: torch.device) -> Method:
    """Return a method fitted on the split that it declares; without `fit_on` it gets only the head.

    Each part of a composite is fitted on the split that it declares.
    """
    if isinstance(method, Composite):
        return method.fit_parts(
            lambda part: fit(part, fitting, features, device),
            lambda part: torch.from_numpy(score_split(part, fitting.id_val, Scoring(features, device))),
        )
    request = method.request
    train = None
    if request.fit_on is not None:
        split = fitting.split(request.fit_on)
        train = declared(features(split, request.clean), request.clean).on(device)
        if request.mixing is not None:
            copies = features.mixed(split, mixed_with(fitting.ood_val), request.mixing)
            train = replace(train, columns={**train.columns, Field.MIXED: copies})
    head = None
    if request.head:
        head = replace(fitting.head.to(device), texts={texts: features.texts(texts) for texts in request.texts})
    fitted = method.fit(train, head)
    if isinstance(fitted, LiveMethod) and request.fit_on is not None:
        data, mixing = fitting.split(request.fit_on).digest, request.mixing
        fitted.fitted_on_ = data if mixing is None else digest([data, mixed_with(fitting.ood_val).digest, mixing])
    return fitted


def score_split(method: Method, split: Split, scoring: Scoring) -> NDArray[np.float32]:
    """Return the scores (n,) float32 of a split by a fitted method; a composite's parts read separate columns.

    Args:
        method: fitted.
        split: to score.
        scoring: source of the columns, device and batch size.

    Raises:
        MethodError: a score is NaN, or the method returned another shape.
    """
    where = f"{split.name} ({split.role})"
    if isinstance(method, Composite):
        parts = {name: score_split(part, split, scoring) for name, part in method.fitted_parts.items()}
        combined = method.combine({name: torch.from_numpy(scores) for name, scores in parts.items()})
        return _checked(method, combined.numpy(), f"combine on {where}")
    if isinstance(method, LiveMethod):
        return _checked(method, scoring.features.scores(method, split), f"score_images on {where}")
    return score(method, scoring.features(split, method.request.unmixed).on(scoring.device), scoring.batch, where)


def class_scores(method: Method, split: Split, scoring: Scoring) -> NDArray[np.float32] | None:
    """Return the class-conditional scores (n, c) float32 of a split, or None if the method has none.

    Args:
        method: fitted.
        split: an ID split.
        scoring: source of the columns, device and batch size.

    Raises:
        MethodError: NaN, or another shape than one row per sample.
    """
    if isinstance(method, Composite | LiveMethod) or type(method).class_scores is Method.class_scores:
        return None  # without reading a column
    x = scoring.features(split, method.request.unmixed).on(scoring.device)
    return score(method, x, scoring.batch, f"{split.name} ({split.role})", "class_scores")


def score(method: Method, x: FeatureSet, batch: int, where: str, name: str = "score") -> NDArray[np.float32]:
    """Return the scores (n,) float32 of a split, `batch` rows at a time; or those by class, (n, c).

    Raises:
        MethodError: a score is NaN, or the method returned another shape; the message names the method and the split.
    """
    parts, axes = [], {"score": 1, "class_scores": 2}[name]
    for rows in declared(x, method.request).without_labels().batches(batch):
        scores = getattr(method, name)(rows)
        shape = () if scores is None else tuple(scores.shape)
        if len(shape) != axes or shape[0] != len(rows):
            expected = f"({len(rows)},{' c' * (axes - 1)})"
            raise MethodError(f"{type(method).__name__}.{name} on {where}: shape {shape} — {expected} expected")
        parts.append(scores.detach().to("cpu", torch.float32))
    return _checked(method, torch.cat(parts).numpy(), f"{name} on {where}")


def _checked(method: Method, scores: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    missing = np.isnan(scores)
    if missing.any():
        raise MethodError(
            f"{type(method).__name__}.{where}: {int(missing.sum())} of {scores.size} scores are NaN "
            f"(first at row {int(missing.reshape(len(scores), -1).any(axis=1).argmax())}) — parameters "
            f"{method.params()}; NaN scores cannot be evaluated"
        )
    return scores


def predictions(split: Split, features: FeatureSource) -> NDArray[np.int64]:
    """Return argmax of the unperturbed logits, (n,) int64: the classifier's answer, whatever the OOD method does."""
    x = features(split, Request(fields=frozenset({Field.LOGITS})))
    return np.concatenate([rows.logits.argmax(dim=1).cpu().numpy() for rows in x.batches(65536)])


def declared(x: FeatureSet, request: Request) -> FeatureSet:
    """Return only the declared columns, so that undeclared use fails in every run."""
    return replace(x, columns={name: column for name, column in x.columns.items() if name in request.fields})


def feature_store(runtime: Runtime) -> FeatureStore:
    """The feature store of a runtime."""
    return FeatureStore(
        runtime.features,
        batch_size=runtime.batch_size,
        workers=runtime.workers,
        progress=runtime.progress,
        sharding=runtime.sharding,
    )


@dataclass
class CachedFeatures(FeatureSource):
    """A feature store bound to one backbone; its time is the clock's `features` stage.

    Args:
        store: of the columns.
        backbone: with weights.
        clock: of the run.
        reused: version, commit and time of features that were in the cache; the latest if they differ.
    """

    store: FeatureStore
    backbone: Backbone
    clock: Clock
    reused: str = ""

    @classmethod
    def of(cls, backbone: Backbone, runtime: Runtime, clock: Clock | None = None) -> "CachedFeatures":
        """Return the cached features of a network under a runtime."""
        return cls(feature_store(runtime), backbone, clock or Clock())

    def lacks(self, split: Split) -> bool:
        """Whether features of a split are still to be extracted."""
        return bool(self.store.missing(self.backbone, split, _BASE))

    def expect(self, splits: Iterable[Split]) -> None:
        """Note whose features are reused, and log how many images are to be extracted.

        Args:
            splits: of the run.
        """
        splits = list(splits)
        missing = [split for split in splits if self.lacks(split)]
        origins = [self.store.origin(self.backbone, split) for split in splits if split not in missing]
        if origins:
            some = f" ({len(origins)} of {len(splits)} sets)" if missing else ""
            # Each origin ends in its time: take the latest.
            self.reused = max(origins, key=lambda origin: origin.rpartition(", ")[2]) + some
        if len(missing) > 1:
            logger.info(f"features: {sum(map(len, missing)):,} images of {len(missing)} sets to extract")

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        """Return the columns of a split, extracted now if they are not cached."""
        with self.clock.stage("features"):
            return self.store.get(self.backbone, split, request)

    def scores(self, method: LiveMethod, split: Split) -> NDArray[np.float32]:
        """Return the scores of a split by a live method, computed now if they are not cached."""
        with self.clock.stage("features"):
            return self.store.scores(self.backbone, split, method).numpy()

    def texts(self, texts: Texts) -> Tensor:
        """Return the unit embeddings (m, d) of a corpus, computed now if they are not cached."""
        with self.clock.stage("features"):
            return self.store.texts(self.backbone, texts)

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        """Return the features (n, d) of a split's images mixed with others, extracted now if they are not cached."""
        with self.clock.stage("features"):
            copies = mixed(split, others, mixing, self.backbone.preprocess)
            return self.store.get(self.backbone, copies, MIXED_READ).features


_PARTS = {"": (0.0, 1.0), "_first_quarter": (0.0, 0.25), "_last_quarter": (0.75, 1.0)}
_COUNTS = ("n_id", "n_ood", "n_sets")
Metrics = dict[str, dict[str, Value]]


def score_streams(method: StreamingMethod[Any], plan: StreamPlan, benchmark: Benchmark, scoring: Scoring) -> Metrics:
    """Return the metrics of all streams of a benchmark.

    Args:
        method: fitted.
        plan: the streams.
        benchmark: its ID test, near and far sets.
        scoring: source of the columns, device and batch size.

    Returns:
        `order_I/SET` and `order_I/near`, `order_I/far`: AUROC and FPR@95 of order I, and the AUROC of the first and the
        last quarter of its stream, where that has images of both sides; and under the bare names the means over orders.
    """
    ood = (*benchmark.near.values(), *benchmark.far.values())
    orders: list[Metrics] = [{} for _ in range(plan.orders)]
    for group in [ood] if plan.sets == "all" else [(split,) for split in ood]:
        splits = (benchmark.id_test, *group)
        read = [declared(scoring.features(split, method.request), method.request) for split in splits]
        sets = [x.without_labels().on(scoring.device) for x in read]
        for number, metrics in enumerate(orders):
            stream = score_stream(method, sets, plan, number, scoring.batch)
            metrics |= {split.name: measured(*stream, side, split.name) for side, split in enumerate(group, 1)}
        logger.info(f"ID test and {', '.join(split.name for split in group)}: {plan.orders} orders scored")
    for role in (Role.NEAR, Role.FAR):
        names = [split.name for split in ood if split.role == role]
        for metrics in orders if names else []:
            metrics[role.value] = {**_means([metrics[name] for name in names]), "n_sets": len(names)}
    means = {name: _means([metrics[name] for metrics in orders]) for name in orders[0]}
    return means | {order_name(i, name): values for i, metrics in enumerate(orders) for name, values in metrics.items()}


def measured(scores: NDArray[np.float32], part: NDArray[np.int64], side: int, name: str) -> dict[str, Value]:
    """Return the metrics of an OOD set against ID, in the order of a stream.

    Args:
        scores: (n,).
        part: (n,) the set of each image: 0 is ID, 1 and higher are OOD sets.
        side: of the OOD set.
        name: of the OOD set.

    Raises:
        ConfigError: the stream has no image of it.
    """
    metrics: dict[str, Value] = {"n_id": int((part == 0).sum()), "n_ood": int((part == side).sum())}
    if not metrics["n_ood"]:
        raise ConfigError(
            f"{StreamPlan.named}.ood_per_id: an order of the stream holds no image of '{name}' — choose more OOD "
            "images per ID image, or a stream per OOD set"
        )
    for suffix, (begin, end) in _PARTS.items():
        rows = slice(int(begin * len(part)), int(end * len(part)))
        inside, outside = (scores[rows][part[rows] == which] for which in (0, side))
        if len(inside) and len(outside):
            metrics[f"auroc{suffix}"] = auroc(inside, outside)
            metrics |= {} if suffix else {"fpr95": fpr95(inside, outside)}
    return metrics


def score_stream(
    method: StreamingMethod[Any], sets: Sequence[FeatureSet], plan: StreamPlan, number: int, batch: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the scores (n,) of order `number` of a stream, from an empty memory, and the set (n,) of each image.

    Raises:
        MethodError: scores of another shape, or one that is not finite.
    """
    sizes = [len(x) for x in sets]
    whole = FeatureSet(
        {name: torch.cat([x.columns[name] for x in sets]) for name in sets[0].columns},
        {name: torch.cat([x.maps[name] for x in sets]) for name in sets[0].maps},
        sets[0].device,
    )
    order = plan.order(sizes[0], sum(sizes[1:]), number)
    memory, scores, name = method.memory(), np.empty(len(order), np.float32), f"{type(method).__name__}.score_next"
    for begin in range(0, len(order), batch):
        at = slice(begin, begin + batch)
        batch_scores = method.score_next(whole[torch.from_numpy(order[at])], memory)
        if batch_scores.shape != scores[at].shape:
            raise MethodError(f"{name}: shape {tuple(batch_scores.shape)} — {scores[at].shape} expected")
        scores[at] = batch_scores.detach().to("cpu", torch.float32).numpy()
    if missing := int((~np.isfinite(scores)).sum()):
        raise MethodError(f"{name}: {missing} of {len(scores)} scores are not finite (parameters {method.params()})")
    return scores, np.repeat(np.arange(len(sets)), sizes)[order]


def _means(members: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return the means of the metrics that all members have."""
    keys = [key for key in members[0] if key not in _COUNTS and all(key in member for member in members)]
    return {key: fmean(float(member[key]) for member in members) for key in keys}
