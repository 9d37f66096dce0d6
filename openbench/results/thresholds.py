"""Thresholds of runs on several groups of ID and OOD data, such as the pairs of a collection, from stored scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.errors import RecordError, did_you_mean
from openbench.metrics.curve import Floats, PooledCurve
from openbench.metrics.curve_ranking import aupr_out, auroc, fpr_at_tpr
from openbench.metrics.shared_threshold import SharedThresholds, shared_thresholds
from openbench.results.scores import ScoreStore
from openbench.results.table import Column, Table
from openbench.results.views import hyper_parameters, training_of, tuned_on

Pairs = Mapping[str, tuple[Floats, Floats]]
_HEADER = (
    "OOD sets of a group thrown together, OOD positive, group means unweighted · F1 at the group's best threshold; "
    "others: best of the other groups' thresholds; single: one threshold for all · FPR@95: OOD positive; AUPR by "
    "trapezoid · relative: in deviations of the ID score"
)


@dataclass(frozen=True)
class Scored:
    """One method on several groups.

    Args:
        method: its name.
        about: hyper-parameters, training, backbone and seed, as far as they are known.
        groups: ID and OOD scores by the group's name.
    """

    method: str
    about: str
    groups: Pairs


def scored_runs(records: Iterable[ResultRecord], scores: ScoreStore, prefixes: Sequence[str]) -> list[Scored]:
    """Return the runs on benchmarks whose names begin with a prefix, one entry per method, in the order of its name.

    Args:
        records: any.
        scores: where their scores are.
        prefixes: e.g. `rebench_case1`.

    Raises:
        RecordError: a prefix that no record's benchmark has, or two runs that one row cannot hold.
        CacheError: the scores of a run are not there any more.
    """
    records = list(records)
    names = sorted({str(record.benchmark.get("name")) for record in records})
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise RecordError(
                f"no record of a benchmark '{prefix}…'{did_you_mean(prefix, names)} — found {len(names)} benchmarks"
                f"{': ' + ', '.join(names[:5]) if names else ''} — run it first, or give files of scores"
            )
    chosen: dict[tuple[str, str], dict[str, dict[str, ResultRecord]]] = {}
    # The newest version of a method first: it is the one that is kept.
    for record in sorted(records, key=lambda r: -int(r.method.get("version", 0))):
        name = str(record.benchmark.get("name"))
        if any(name.startswith(prefix) for prefix in prefixes):
            versions = chosen.setdefault(_who(record), {}).setdefault(name, {})
            kept = versions.setdefault(str(record.benchmark.get("digest")), record)
            _check_same_scores(kept, record)
    return [
        Scored(method, about, {name: _sides(record, scores) for name, record in _by_group(groups).items()})
        for (method, about), groups in sorted(chosen.items())
    ]


def summary_table(methods: Sequence[Scored]) -> Table:
    """Return one row per method: means over its groups, and how far its best threshold moves.

    Args:
        methods: at least one group each.

    Raises:
        MetricError: scores of which no finite best threshold exists.
    """
    columns = (
        *(Column(title) for title in ("method", "run")),
        Column("groups", "count"),
        *(Column(t, "percent") for t in ("F1 ↑", "others F1 ↑", "single F1 ↑", "AUROC ↑", "FPR@95 ↓", "AUPR-out ↑")),
        *(Column(f"threshold {t}", "number") for t in ("variance", "std", "range", "relative std ↓")),
    )
    rows = []
    for scored in methods:
        found = shared_thresholds(scored.groups)
        curves = [PooledCurve.of(*pair) for pair in scored.groups.values()]
        f1 = list(found.groups.values())
        others = [group.others for group in f1 if group.others is not None]
        means = [
            float(np.mean([group.own for group in f1])),
            float(np.mean(others)) if others else None,
            float(np.mean([group.single for group in f1])),
            *(float(np.mean([m(c) for c in curves])) for m in (auroc, fpr_at_tpr, lambda c: aupr_out(c).trapezoid)),
        ]
        spread = (found.variance, found.std, found.range, found.relative_std)
        rows.append((scored.method, scored.about, len(curves), *means, *spread))
    return Table("thresholds over groups", columns, tuple(rows), _HEADER)


def group_table(scored: Scored) -> Table:
    """Return one row per group of a method: its own threshold, and those of others that suit it best.

    Args:
        scored: at least one group.
    """
    found: SharedThresholds = shared_thresholds(scored.groups)
    columns = (
        Column("group"),
        Column("threshold", "number"),
        Column("F1 ↑", "percent"),
        Column("others' threshold", "number"),
        Column("others F1 ↑", "percent"),
        Column("single F1 ↑", "percent"),
    )
    rows = tuple((name, g.threshold, g.own, g.others_threshold, g.others, g.single) for name, g in found.groups.items())
    title = f"{scored.method}{f' ({scored.about})' if scored.about else ''}"
    return Table(f"{title} · single threshold {found.single_threshold:.4g}", columns, rows, _HEADER)


def _check_same_scores(kept: ResultRecord, other: ResultRecord) -> None:
    """Refuse a run beside that which a row keeps, unless it has the same scores or the method has changed since."""
    # Runs that differ in their choice of metrics only have the same scores: one of them is enough.
    made = [(r.method.get("params"), r.backbone.get("digest")) for r in (kept, other)]
    if made[0] != made[1] and kept.method.get("version") == other.method.get("version"):
        raise RecordError(
            f"benchmark '{kept.benchmark.get('name')}': the runs {kept.run_id} and {other.run_id} of method "
            f"'{kept.method.get('name')}' differ in the parameters chosen or in the network, which tells no rows apart "
            "— keep the records of each sweep in a folder of their own, and give it as --results"
        )


def _who(record: ResultRecord) -> tuple[str, str]:
    parts = [
        hyper_parameters(record.method.get("params", {})) if not record.tuned else f"tuned on {tuned_on(record)}",
        training_of(record),
        str(record.backbone.get("name")),
        f"seed {record.config.get('seed')}",
    ]
    return str(record.method.get("name")), " · ".join(part for part in parts if part)


def _by_group(groups: Mapping[str, Mapping[str, ResultRecord]]) -> dict[str, ResultRecord]:
    """Each benchmark's record; versions of one benchmark (other images, dropped sets) are told apart by digest."""
    found = {}
    for name in sorted(groups):
        for digest, record in sorted(groups[name].items()):
            found[name if len(groups[name]) == 1 else f"{name} ({digest[:8]})"] = record
    return found


def _sides(record: ResultRecord, scores: ScoreStore) -> tuple[Floats, Floats]:
    splits = scores.read(record.run_id)
    inside = [split.scores for split in splits if split.role == Role.ID_TEST]
    outside = [split.scores for split in splits if split.role in (Role.NEAR, Role.FAR)]
    return np.concatenate(inside).astype(np.float64), np.concatenate(outside).astype(np.float64)
