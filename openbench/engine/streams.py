"""The protocol of streaming methods: seeded orders of ID and OOD test images, an empty memory for each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from openbench.backbones.base import Backbone
from openbench.checkout import uncommitted
from openbench.config.constraints import Checked, Count, Positive, Seed
from openbench.core.benchmark import Benchmark, Split
from openbench.core.features import FeatureSet
from openbench.core.request import Field, Role
from openbench.core.runtime import Runtime
from openbench.core.streaming import StreamingMethod
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import open_benchmark
from openbench.data.checking.same_images import refuse_listed_images, refuse_same_images
from openbench.digest import digest
from openbench.engine.compatibility import tells_apart
from openbench.engine.evaluate import CachedFeatures, Fitting, feature_store
from openbench.engine.heads import head_reader
from openbench.engine.prepare import Config, ready_backbone
from openbench.engine.provenance import Clock, describe_backbone, provenance
from openbench.engine.run import images_read
from openbench.errors import ConfigError, MethodError, NotApplicableError
from openbench.features.texts import Corpus
from openbench.metrics.curve import auroc, fpr95
from openbench.public import name_of
from openbench.results.streams import StreamRecord
from openbench.say import Say, silent
from openbench.source import foreign_sources

_MADE_BY = "openbench.engine.streams"
_QUARTER = 0.25
Order = NDArray[np.int64]


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

    named: ClassVar[str] = "stream"

    sets: Literal["each", "all"] = "each"
    ood_per_id: Positive | None = None
    orders: Count = 5
    seed: Seed = 0

    def order(self, id_images: int, ood_images: int, number: int) -> Order:
        """Return the images of order `number`, ID ones as 0 to id_images − 1, OOD ones from there on.

        Raises:
            ConfigError: the ratio leaves no image of a side.
        """
        rng = np.random.default_rng([self.seed, number])
        inside, outside = np.arange(id_images), np.arange(id_images, id_images + ood_images)
        if self.ood_per_id is not None:
            kept = min(id_images, int(ood_images / self.ood_per_id))
            wanted = min(ood_images, round(kept * self.ood_per_id))
            if not kept or not wanted:
                raise ConfigError(
                    f"stream.ood_per_id — found {self.ood_per_id:g} — of {id_images} ID and {ood_images} OOD images no "
                    "image of one side would be left — choose a ratio nearer to theirs, or leave it out"
                )
            inside, outside = rng.choice(inside, kept, replace=False), rng.choice(outside, wanted, replace=False)
        return rng.permutation(np.concatenate([inside, outside]))


@dataclass(frozen=True)
class StreamSpec:
    """A streaming method as it was typed, and the streams that it is to score.

    Args:
        method: unfitted.
        name: what users type.
        plan: the streams.
    """

    method: StreamingMethod[Any]
    name: str
    plan: StreamPlan


@dataclass(frozen=True, eq=False)
class StreamJob:
    """A streaming method with all that its streams need, ready to be scored.

    Args:
        spec: method and streams.
        benchmark: its sets are opened.
        backbone: with weights, on its device.
        about_backbone: as it stands in a record.
        setting: how the job is carried out.
    """

    spec: StreamSpec
    benchmark: Benchmark
    backbone: Backbone
    about_backbone: dict[str, Any]
    setting: Runtime

    @cached_property
    def stream_id(self) -> str:
        """What names the record: equal ids, equal numbers to rounding."""
        method, benchmark = self.spec.method, self.benchmark
        parts = (method, self.backbone, *(split.source for split in benchmark.splits()))
        return digest(
            {
                "stream": asdict(self.spec.plan),
                "method": name_of(type(method)),
                "version": type(method).version,
                "params": method.params(),
                **self._texts(),
                "benchmark": benchmark.digest,
                "images": images_read(benchmark),
                "backbone": self.backbone.digest,
                "sources": foreign_sources(*parts),
                "uncommitted": uncommitted(_MADE_BY, parts=parts),
            }
        )

    def record(self, say: Say = silent) -> StreamRecord:
        """Score all streams and return the record; nothing is written but cached features.

        Args:
            say: receives a line for everything that takes long.

        Raises:
            OpenbenchError: anything wrong with data, cache, method or scores.
        """
        clock, method, benchmark = Clock(), self.spec.method, self.benchmark
        before = self.backbone.passes
        features = CachedFeatures(feature_store(self.setting, say), self.backbone, clock, say)
        with clock.stage("fit"):
            method = _fitted(method, Fitting.of(benchmark, self.backbone.head), features, self.backbone.device)
        with clock.stage("score"):
            sets = self._sets(method, features, say)
        return StreamRecord(
            stream_id=self.stream_id,
            method={
                "name": self.spec.name,
                "class": name_of(type(method)),
                "version": type(method).version,
                "params": method.params(),
                "reference": type(method).reference,
                **self._texts(),
            },
            plan=asdict(self.spec.plan),
            benchmark={
                "name": benchmark.name,
                "digest": benchmark.digest,
                "pristine": benchmark.pristine,
                "deviations": list(benchmark.deviations),
            },
            backbone=self.about_backbone,
            sets=sets,
            provenance=provenance(clock, self.backbone.device, self.backbone.passes - before),
        )

    def _texts(self) -> dict[str, Any]:
        """The corpora that the method reads, with their digests; nothing if it reads none."""
        found = [Corpus.of(self.backbone, texts).described() for texts in self.spec.method.request.texts]
        return {"texts": found} if found else {}

    def _sets(self, method: StreamingMethod[Any], features: CachedFeatures, say: Say) -> dict[str, Any]:
        """What the record holds of each OOD set."""
        plan = self.spec.plan
        sets: dict[str, Any] = {}
        for group in _groups(self.benchmark, plan):
            splits = (self.benchmark.id_test, *group)
            parts = [_columns(method, s, features).without_labels().on(self.backbone.device) for s in splits]
            streams = [_stream(method, parts, plan, number, self.setting.score_batch) for number in range(plan.orders)]
            sets |= {split.name: _of_set(split, streams, side + 1) for side, split in enumerate(group)}
            say(f"ID test and {', '.join(split.name for split in group)}: {plan.orders} orders scored")
        return sets


def prepared(config: Config, runtime: Config, spec: StreamSpec, say: Say = silent) -> StreamJob:
    """Return the job of a config; a network without weights is trained first if the policy allows.

    Args:
        config: the nodes benchmark, backbone, training and seed, as for a run.
        runtime: the runtime node.
        spec: method and streams.
        say: receives a line for everything that takes long.

    Raises:
        OpenbenchError: any bad input, before anything is computed wherever it can be known by then.
    """
    setting = Runtime.from_config(runtime)
    benchmark = _opened(config, spec)
    backbone, learnt = ready_backbone(config, benchmark, setting, say)
    _check_classes(spec, benchmark, backbone)
    return StreamJob(spec, benchmark, backbone, describe_backbone(backbone, learnt, config), setting)


@dataclass(frozen=True)
class _Stream:
    """The scores of a stream in its order, and which part each image is of: 0 ID, 1 and on the OOD sets."""

    scores: NDArray[np.float32]
    part: Order

    def measured(self, side: int, begin: float = 0.0, end: float = 1.0) -> tuple[float, float] | None:
        """AUROC and FPR@95 of the part `side` against ID between two shares of the stream; None without both."""
        n = len(self.scores)
        rows = slice(int(begin * n), int(end * n))
        scores, part = self.scores[rows], self.part[rows]
        inside, outside = scores[part == 0], scores[part == side]
        return (auroc(inside, outside), fpr95(inside, outside)) if len(inside) and len(outside) else None


def _of_set(split: Split, streams: Sequence[_Stream], side: int) -> dict[str, Any]:
    """What a record holds of one OOD set: a number per order, of the whole stream and of its ends."""
    whole = [found for stream in streams if (found := stream.measured(side)) is not None]
    if len(whole) < len(streams):
        raise ConfigError(
            f"stream.ood_per_id: an order of the stream holds no image of '{split.name}' — choose more OOD images per "
            "ID image, or a stream per OOD set"
        )
    counts = [int((stream.part == side).sum()) for stream in streams]
    ends = {"first_quarter": (0.0, _QUARTER), "last_quarter": (1 - _QUARTER, 1.0)}
    return {
        "role": split.role.value,
        "id_images": int((streams[0].part == 0).sum()),
        "ood_images": counts[0] if len(set(counts)) == 1 else counts,
        "auroc": [first for first, _ in whole],
        "fpr95": [second for _, second in whole],
    } | {
        f"auroc_{name}": [None if (found := stream.measured(side, *at)) is None else found[0] for stream in streams]
        for name, at in ends.items()
    }


def _stream(
    method: StreamingMethod[Any], parts: Sequence[FeatureSet], plan: StreamPlan, number: int, batch: int
) -> _Stream:
    """Score one stream from an empty memory."""
    starts = np.cumsum([0, *map(len, parts)])
    order = plan.order(len(parts[0]), int(starts[-1]) - len(parts[0]), number)
    part = np.searchsorted(starts, order, side="right") - 1
    memory, scores = method.memory(), []
    for begin in range(0, len(order), batch):
        at = slice(begin, begin + batch)
        found = method.score_next(_gathered(parts, part[at], order[at] - starts[part[at]]), memory)
        if found.shape != (len(order[at]),):
            raise MethodError(
                f"{type(method).__name__}.score_next: shape {tuple(found.shape)} — ({len(order[at])},) expected"
            )
        scores.append(found.detach().to("cpu", torch.float32).numpy())
    joined = np.concatenate(scores)
    if not np.isfinite(joined).all():
        raise MethodError(
            f"{type(method).__name__}.score_next: {int((~np.isfinite(joined)).sum())} of {len(joined)} scores are not "
            f"finite — parameters {method.params()}; they cannot be evaluated"
        )
    return _Stream(joined, part)


def _gathered(parts: Sequence[FeatureSet], part: Order, rows: Order) -> FeatureSet:
    """Rows of several sets, in the order given."""
    pieces, places = [], []
    for index, x in enumerate(parts):
        place = np.flatnonzero(part == index)
        if len(place):
            pieces.append(x[torch.from_numpy(rows[place])])
            places.append(torch.from_numpy(place))
    back = torch.cat(places).argsort()
    columns = {name: torch.cat([piece.columns[name] for piece in pieces])[back] for name in pieces[0].columns}
    maps = {name: torch.cat([piece.maps[name] for piece in pieces])[back] for name in pieces[0].maps}
    return FeatureSet(columns, maps, pieces[0].device)


def _opened(config: Config, spec: StreamSpec) -> Benchmark:
    """The benchmark, with the training images if the method or the network's head is fitted on them."""
    reads = spec.method.request.fit_on == Role.ID_TRAIN
    reader = f"streaming method '{spec.name}', which is fitted on it" if reads else head_reader(config["backbone"])
    parsed = BenchmarkConfig.parse(config["benchmark"])
    benchmark = open_benchmark(parsed, reader)
    refuse_listed_images(benchmark, parsed)
    refuse_same_images(benchmark)
    return benchmark


def _check_classes(spec: StreamSpec, benchmark: Benchmark, backbone: Backbone) -> None:
    request = spec.method.request
    reads = sorted(request.fields & {Field.LOGITS}) + ["the head"] * request.head
    if reads and not tells_apart(backbone, benchmark):
        raise NotApplicableError(
            f"streaming method '{spec.name}' reads {' and '.join(reads)} — backbone '{backbone.name}' has no "
            f"classifier of the {len(benchmark.classes)} classes of benchmark '{benchmark.name}' — choose a backbone "
            "trained on them"
        )


def _fitted(
    method: StreamingMethod[Any], fitting: Fitting, features: CachedFeatures, device: torch.device
) -> StreamingMethod[Any]:
    request = method.request
    train = None if request.fit_on is None else _columns(method, fitting.split(request.fit_on), features).on(device)
    if not request.head:
        return method.fit(train, None)
    texts = {texts: features.texts(texts) for texts in request.texts}
    return method.fit(train, replace(fitting.head.to(device), texts=texts))


def _columns(method: StreamingMethod[Any], split: Split, features: CachedFeatures) -> FeatureSet:
    """Only the declared columns."""
    x = features(split, method.request)
    return replace(x, columns={name: column for name, column in x.columns.items() if name in method.request.fields})


def _groups(benchmark: Benchmark, plan: StreamPlan) -> list[tuple[Split, ...]]:
    """The OOD sets of each stream."""
    every = (*benchmark.near.values(), *benchmark.far.values())
    return [every] if plan.sets == "all" else [(split,) for split in every]
