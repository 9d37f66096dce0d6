"""Records to rows: which are admitted, which seeds belong together, and in what order they stand."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.results.settings import hyper_parameters
from openbench.results.table import Estimate
from openbench.results.trained import training_of
from openbench.results.views import FULL_SPECTRUM

GROUPS = ("near", "far")
# What differs between the runs of one row: the seed, and how numbers are reported but not made.
_NOT_IN_ROW = ("seed", "metrics")
_LEVEL = 0.95


@dataclass(frozen=True)
class Row:
    """One method on one backbone: the mean over its seeds.

    Args:
        method: what users type after `method=`.
        version: of the method.
        training: how the backbone was trained.
        backbone: its name.
        params: hyper-parameters; several settings, joined by ` | `, if tuning chose differently per seed.
        tuned: `validation`, `no`, or the strategy's name.
        runs: run ids, sorted.
        networks: how many different networks the runs used.
        values: `near auroc`, `far auroc`, `near fpr95`, `far fpr95`, `accuracy`.
        reasons: why it is not ranked; empty if it is.
    """

    method: str
    version: int
    training: str
    backbone: str
    params: str
    tuned: str
    runs: tuple[str, ...]
    networks: int
    values: Mapping[str, Estimate | str | None]
    reasons: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[Any, ...]:
        """Best near AUROC first, then far AUROC; equals by what they are, so that the order never depends on files."""
        scores = [-_number(self.values.get(f"{group} auroc")) for group in GROUPS]
        return (*scores, self.method, self.training, self.backbone, self.params, self.tuned, self.runs)


@dataclass(frozen=True)
class Board:
    """The rows of one benchmark, as defined by one digest, on one ID side.

    Args:
        benchmark: its name.
        digest: of the benchmark; rows under different digests are not comparable.
        full_spectrum: whether covariate-shifted ID images count as ID.
        ranked: best first.
        unranked: what is shown but not ranked, with reasons.
        headers: the convention lines of its records.
    """

    benchmark: str
    digest: str
    full_spectrum: bool
    ranked: tuple[Row, ...]
    unranked: tuple[Row, ...]
    headers: tuple[str, ...]


def boards(records: Iterable[ResultRecord]) -> list[Board]:
    """Return the boards of all records: by benchmark, by digest, standard before full spectrum."""
    by_benchmark: dict[tuple[str, str], list[ResultRecord]] = {}
    for record in records:
        name, made_of = str(record.benchmark.get("name")), str(record.benchmark.get("digest"))
        by_benchmark.setdefault((name, made_of), []).append(record)
    found = []
    for (name, made_of), members in sorted(by_benchmark.items()):
        headers = tuple(sorted({record.header for record in members}))
        for side in ("", FULL_SPECTRUM):
            present = [r for r in members if not side or any(n.startswith(side) for n in r.metrics)]
            if present:
                rows = sorted(_rows(present, side), key=lambda row: row.order)
                ranked = tuple(row for row in rows if not row.reasons)
                unranked = tuple(row for row in rows if row.reasons)
                found.append(Board(name, made_of, bool(side), ranked, unranked, headers))
    return found


def _rows(records: Sequence[ResultRecord], side: str) -> list[Row]:
    groups: dict[str, list[ResultRecord]] = {}
    for record in records:
        groups.setdefault(_row_key(record), []).append(record)
    newest: dict[str, int] = {}
    for record in records:
        name = str(record.method.get("name"))
        newest[name] = max(newest.get(name, 0), int(record.method.get("version", 0)))
    return [_row(_one_per_network(members), side, newest) for members in groups.values()]


def _row_key(record: ResultRecord) -> str:
    """Digest of what the runs of a row have in common: all of the config but the seed and the choice of metrics."""
    config = {key: node for key, node in record.config.items() if key not in _NOT_IN_ROW}
    method = [record.method.get("name"), record.method.get("version")]
    return digest([config, method, record.backbone.get("name"), training_of(record)])


def _one_per_network(records: Sequence[ResultRecord]) -> list[ResultRecord]:
    """One record per seed and network: repeating a run with other metrics does not make another sample."""
    chosen: dict[tuple[Any, Any], ResultRecord] = {}
    for record in sorted(records, key=lambda r: (_level(r) != _LEVEL, r.run_id)):
        chosen.setdefault((record.config.get("seed"), record.backbone.get("digest")), record)
    return sorted(chosen.values(), key=lambda r: r.run_id)


def _row(records: Sequence[ResultRecord], side: str, newest: Mapping[str, int]) -> Row:
    first = records[0]
    settings = sorted({hyper_parameters(r.method.get("params", {})) for r in records}, key=_natural)
    values = {f"{g} {key}": _summary(records, f"{side}{g}", key) for key in ("auroc", "fpr95") for g in GROUPS}
    values["accuracy"] = _summary(records, f"{side}id", "accuracy")
    return Row(
        method=str(first.method.get("name")),
        version=int(first.method.get("version", 0)),
        training=training_of(first),
        backbone=str(first.backbone.get("name")),
        params=" | ".join(settings),
        tuned=_tuned(first),
        runs=tuple(record.run_id for record in records),
        networks=len({record.backbone.get("digest") for record in records}),
        values=values,
        reasons=_reasons(records, values, newest),
    )


def _reasons(
    records: Sequence[ResultRecord], values: Mapping[str, Estimate | str | None], newest: Mapping[str, int]
) -> tuple[str, ...]:
    """Why a row is not ranked, most serious first; empty if nothing speaks against it."""
    found = []
    if any(_strategy(record).startswith("oracle") for record in records):
        found.append(f"hyper-parameters chosen on test data ({_strategy(records[0]).replace('_', ' ')})")
    deviations = sorted({str(d) for r in records for d in r.benchmark.get("deviations") or ()})
    if any(record.benchmark.get("pristine") is not True for record in records):
        found.append(f"benchmark not as defined: {'; '.join(deviations) or 'deviations not stated'}")
    name, version = str(records[0].method.get("name")), int(records[0].method.get("version", 0))
    if version < newest[name]:
        found.append(f"made by version {version} of the method, which is now at {newest[name]}")
    if not any(isinstance(values[f"{group} auroc"], Estimate) for group in GROUPS):
        found.append("no AUROC was measured")
    return tuple(found)


def _summary(records: Sequence[ResultRecord], name: str, key: str) -> Estimate | str | None:
    """Mean and population deviation over runs; of a single run its value and interval; `unable` if any run was."""
    found = [record.metrics.get(name, {}).get(key) for record in records]
    if any(value is None for value in found):
        return None
    numbers = [float(value) for value in found if isinstance(value, float | int)]
    if len(numbers) < len(found):
        return "unable"
    if len(numbers) > 1:
        return Estimate(fmean(numbers), std=pstdev(numbers))
    values = records[0].metrics[name]
    low, high = (values.get(f"{key}_{end}") for end in ("low", "high"))
    if isinstance(low, float | int) and isinstance(high, float | int) and _level(records[0]) == _LEVEL:
        return Estimate(numbers[0], float(low), float(high))
    return Estimate(numbers[0])


def _level(record: ResultRecord) -> float:
    """The confidence level of a record's intervals."""
    node = record.config.get("metrics")
    return float(node.get("confidence", _LEVEL)) if isinstance(node, dict) else _LEVEL


def _strategy(record: ResultRecord) -> str:
    node = record.config.get("tune")
    return str(node.get("strategy", "none")) if isinstance(node, dict) else "none"


def _tuned(record: ResultRecord) -> str:
    """Whether hyper-parameters were chosen on validation; a method with nothing to tune was not tuned."""
    strategy = _strategy(record)
    return "no" if strategy == "none" or (strategy == "validation" and not record.tuned) else strategy


def _number(value: Estimate | str | None) -> float:
    return value.value if isinstance(value, Estimate) else float("-inf")


def _natural(text: str) -> list[tuple[float, str]]:
    """Sort key by which k=50 comes before k=100."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if index % 2 else (-1.0, part) for index, part in enumerate(parts)]
