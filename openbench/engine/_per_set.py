"""The oracle per set: hyper-parameters chosen on each OOD test set itself, joined into one record."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from openbench.core.benchmark import Benchmark
from openbench.core.names import FULL_SPECTRUM
from openbench.core.record import ResultRecord, Value
from openbench.core.request import Role
from openbench.engine.provenance import WARNINGS
from openbench.metrics.suite import group_means

HEADER = (
    "hyper-parameters chosen for each OOD set on that test set itself (oracle per set): a bound, not a result; each "
    "set is evaluated by itself, groups are means over sets, and nothing is pooled"
)
_SIDES = ("", FULL_SPECTRUM)


def single_sets(benchmark: Benchmark) -> Iterator[tuple[str, Benchmark]]:
    """Yield each near and far set's name with the benchmark reduced to that set."""
    for name, split in benchmark.near.items():
        yield name, replace(benchmark, near={name: split}, far={})
    for name, split in benchmark.far.items():
        yield name, replace(benchmark, near={}, far={name: split})


def joined_record(run_id: str, benchmark: Benchmark, records: Mapping[str, ResultRecord]) -> ResultRecord:
    """Return one record of the runs on each set: chosen values as {set: value}, trials with their `set`.

    Args:
        run_id: of the joined record.
        benchmark: with all sets.
        records: each set's record, by name.
    """
    first = next(iter(records.values()))
    keys = dict.fromkeys(key for record in records.values() for key in record.tuned)
    chosen = {key: {name: record.tuned[key] for name, record in records.items()} for key in keys}
    counts = {key: count for record in records.values() for key, count in record.counts.items()}
    whole = {"digest": benchmark.digest, "pristine": benchmark.pristine, "deviations": list(benchmark.deviations)}
    return replace(
        first,
        run_id=run_id,
        benchmark=first.benchmark | whole,
        method=first.method | {"params": first.method["params"] | chosen},
        tuned=chosen,
        trials=[{"set": name, **trial} for name, record in records.items() for trial in record.trials],
        metrics=joined_metrics({name: record.metrics for name, record in records.items()}),
        header=f"{first.header} · {HEADER}",
        counts=counts,
        provenance=_provenance([record.provenance for record in records.values()]),
    )


def joined_metrics(by_set: Mapping[str, Mapping[str, dict[str, Value]]]) -> dict[str, dict[str, Value]]:
    """Return the metrics of each set, the means of groups, and the metrics of `id` that are the same for all sets."""
    result: dict[str, dict[str, Value]] = {}
    for side in _SIDES:
        parts = {name: metrics for name, metrics in by_set.items() if f"{side}{name}" in metrics}
        if not parts:
            continue
        result |= {f"{side}{name}": metrics[f"{side}{name}"] for name, metrics in parts.items()}
        for group in (Role.NEAR.value, Role.FAR.value):
            members = [metrics[f"{side}{group}"] for metrics in parts.values() if f"{side}{group}" in metrics]
            if members:
                result[f"{side}{group}"] = group_means(members)
        first, *rest = (metrics[f"{side}id"] for metrics in parts.values())
        result[f"{side}id"] = {
            key: value
            for key, value in first.items()
            if not key.startswith("f1_threshold") and all(other.get(key) == value for other in rest)
        }
    return result


def _provenance(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last part's provenance, with the time, passes and warnings of all parts, and the highest memory."""
    stages = dict.fromkeys(stage for part in parts for stage in part["seconds"])
    seconds = {stage: round(sum(part["seconds"].get(stage, 0.0) for part in parts), 4) for stage in stages}
    memory = {stage: max(part["peak_mib"].get(stage, 0) for part in parts) for stage in parts[-1]["peak_mib"]}
    warnings = list(dict.fromkeys(text for part in parts for text in part.get(WARNINGS, ())))
    whole = {"seconds": seconds, "peak_mib": memory, "passes": sum(part["passes"] for part in parts)}
    return parts[-1] | whole | ({WARNINGS: warnings} if warnings else {})
