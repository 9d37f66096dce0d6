"""The protocol of streaming methods: seeded orders of ID and OOD test images, an empty memory for each."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openbench.core.benchmark import Benchmark
from openbench.core.features import FeatureSet
from openbench.core.names import order_name
from openbench.core.record import Value
from openbench.core.request import Role
from openbench.core.streaming import StreamingMethod, StreamPlan
from openbench.engine.evaluate import Scoring, declared
from openbench.errors import ConfigError, MethodError
from openbench.metrics.curve import auroc, fpr95

logger = logging.getLogger(__name__)

_PARTS = {"": (0.0, 1.0), "_first_quarter": (0.0, 0.25), "_last_quarter": (0.75, 1.0)}
_COUNTS = ("n_id", "n_ood", "n_sets")
Metrics = dict[str, dict[str, Value]]


def score_streams(method: StreamingMethod[Any], plan: StreamPlan, benchmark: Benchmark, scoring: Scoring) -> Metrics:
    """Score all streams of a benchmark and return what a record holds of them.

    Args:
        method: fitted.
        plan: the streams.
        benchmark: its ID test, near and far sets.
        scoring: where columns come from, and where and how they are scored.

    Returns:
        `order_I/SET` and `order_I/near`, `order_I/far`: AUROC and FPR@95 of order I, and the AUROC of the first and the
        last quarter of its stream, where that has images of both sides; and under the bare names the means over orders.
    """
    every = (*benchmark.near.values(), *benchmark.far.values())
    orders: list[Metrics] = [{} for _ in range(plan.orders)]
    for group in [every] if plan.sets == "all" else [(split,) for split in every]:
        splits = (benchmark.id_test, *group)
        read = [declared(scoring.features(split, method.request), method.request) for split in splits]
        sets = [x.without_labels().on(scoring.device) for x in read]
        for number, found in enumerate(orders):
            stream = score_stream(method, sets, plan, number, scoring.batch)
            found |= {split.name: stream.measured(side, split.name) for side, split in enumerate(group, 1)}
        logger.info(f"ID test and {', '.join(split.name for split in group)}: {plan.orders} orders scored")
    for role in (Role.NEAR, Role.FAR):
        names = [split.name for split in every if split.role == role]
        for found in orders:
            found |= {role.value: {**_means([found[name] for name in names]), "n_sets": len(names)}} if names else {}
    means = {name: _means([found[name] for found in orders]) for name in orders[0]}
    return means | {order_name(i, name): values for i, found in enumerate(orders) for name, values in found.items()}


@dataclass(frozen=True)
class Stream:
    """The scores of a stream in its order, and which set each image is of: 0 ID, 1 and on the OOD sets."""

    scores: NDArray[np.float32]
    part: NDArray[np.int64]

    def measured(self, side: int, name: str) -> dict[str, Value]:
        """Return the numbers of the OOD set `side` against ID.

        Raises:
            ConfigError: the stream has no image of it.
        """
        found: dict[str, Value] = {"n_id": int((self.part == 0).sum()), "n_ood": int((self.part == side).sum())}
        if not found["n_ood"]:
            raise ConfigError(
                f"{StreamPlan.named}.ood_per_id: an order of the stream holds no image of '{name}' — choose more OOD "
                "images per ID image, or a stream per OOD set"
            )
        for suffix, (begin, end) in _PARTS.items():
            rows = slice(int(begin * len(self.part)), int(end * len(self.part)))
            inside, outside = (self.scores[rows][self.part[rows] == which] for which in (0, side))
            if len(inside) and len(outside):
                found[f"auroc{suffix}"] = auroc(inside, outside)
                found |= {} if suffix else {"fpr95": fpr95(inside, outside)}
        return found


def score_stream(
    method: StreamingMethod[Any], sets: Sequence[FeatureSet], plan: StreamPlan, number: int, batch: int
) -> Stream:
    """Score order `number` of a stream of ID images, the first of the sets, and OOD ones, from an empty memory.

    Raises:
        MethodError: scores of another shape, or one that is not finite.
    """
    starts = np.cumsum([0, *map(len, sets)])
    order = plan.order(len(sets[0]), int(starts[-1]) - len(sets[0]), number)
    part = np.searchsorted(starts, order, side="right") - 1
    memory, scores, name = method.memory(), np.empty(len(order), np.float32), f"{type(method).__name__}.score_next"
    for begin in range(0, len(order), batch):
        at = slice(begin, begin + batch)
        found = method.score_next(_gathered(sets, part[at], order[at] - starts[part[at]]), memory)
        if found.shape != scores[at].shape:
            raise MethodError(f"{name}: shape {tuple(found.shape)} — {scores[at].shape} expected")
        scores[at] = found.detach().to("cpu", torch.float32).numpy()
    if missing := int((~np.isfinite(scores)).sum()):
        raise MethodError(
            f"{name}: {missing} of {len(scores)} scores are not finite — parameters {method.params()}; they cannot be "
            "evaluated"
        )
    return Stream(scores, part)


def _gathered(sets: Sequence[FeatureSet], part: NDArray[np.int64], rows: NDArray[np.int64]) -> FeatureSet:
    """Rows of several sets, in the order given."""
    places = [np.flatnonzero(part == index) for index in range(len(sets))]
    pieces = [x[torch.from_numpy(rows[place])] for x, place in zip(sets, places, strict=True) if len(place)]
    back = torch.from_numpy(np.concatenate(places)).argsort()
    columns = {name: torch.cat([piece.columns[name] for piece in pieces])[back] for name in pieces[0].columns}
    maps = {name: torch.cat([piece.maps[name] for piece in pieces])[back] for name in pieces[0].maps}
    return FeatureSet(columns, maps, pieces[0].device)


def _means(members: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The means of the numbers that all members have."""
    keys = [key for key in members[0] if key not in _COUNTS and all(key in member for member in members)]
    return {key: fmean(float(member[key]) for member in members) for key in keys}
