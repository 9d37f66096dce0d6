"""The protocol of streaming methods: seeded orders of ID and OOD test images, an empty memory for each."""

import logging
from collections.abc import Mapping, Sequence
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
