"""What tables need of each record, so that thousands of records fit in memory and are read once."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openbench.core.record import ResultRecord, Value
from openbench.core.request import Role
from openbench.digest import digest
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.records.settings import augmentation_of, outliers_of, training_of
from openbench.results.records.superseded import Made

Metrics = Mapping[str, Mapping[str, Value]]
Keep = Callable[[str, str], bool]

# What the runs of a row have in common: the config except for the seed, how numbers are reported, and the benchmark,
# which is compared by its digest.
NODES = ("training", "backbone", "method", "tune")
_NOT_SCORED = (Role.ID_TRAIN, Role.OOD_TRAIN)


@dataclass(frozen=True)
class Run:
    """One record, as far as tables need it.

    Args:
        run_id: of the record.
        benchmark: its name.
        digest: of the benchmark.
        pristine: whether the benchmark is as defined.
        deviations: where it is not.
        method: what users type after `method=`.
        version: of the method.
        params: all hyper-parameters.
        tuned: those chosen on validation.
        strategy: how they were chosen, e.g. `validation`, `none`, `oracle`.
        training: how the backbone was trained.
        augment: with which augmentation.
        outliers: on which outliers.
        backbone: its name.
        network: digest of the backbone with its weights.
        seed: of the run.
        level: confidence level of its intervals.
        nodes: the config's nodes that the runs of a row share.
        row: digest of what they share.
        members: {role: names of its sets}.
        metrics: {set or group: {key: value}}, those that were asked for.
        header: the line of conventions.
        problems: what in the record does not follow from the rest of it.
        made: by which code; to compare runs that otherwise differ in their seeds only.
        complete: whether no image of any set is missing.
        utc: when it was made, as the record states it.
        measured: the sets and groups of which it has numbers, whichever were asked for.
        cost: of scoring, as `cost_of` has it.
    """

    run_id: str
    benchmark: str
    digest: str
    pristine: bool
    deviations: tuple[str, ...]
    method: str
    version: int
    params: Mapping[str, Any]
    tuned: Mapping[str, Any]
    strategy: str
    training: str
    augment: str
    outliers: str
    backbone: str
    network: str
    seed: Any
    level: float
    nodes: Mapping[str, Any]
    row: str
    members: Mapping[str, list[str]]
    metrics: Metrics
    header: str
    problems: tuple[str, ...]
    made: Made
    complete: bool
    utc: str
    measured: tuple[str, ...]
    cost: Mapping[str, float | None]


def everything(name: str, key: str) -> bool:
    """Keep every number."""
    return True


def runs_of(records: Iterable[ResultRecord], keep: Sequence[Keep] = (everything,)) -> Iterator[Run]:
    """Yield what tables need of each record; parts that records have in common are kept once.

    Args:
        records: any.
        keep: each, given a set or group and a key, says whether it needs the number.
    """
    shared = Shared(keep)
    for record in records:
        yield run_of(record, shared)


@dataclass
class Shared:
    """Equal nodes become one object, whose digest is computed once; whether a key is needed is found out once."""

    keep: Sequence[Keep]
    needed: dict[str, dict[str, bool]] = field(default_factory=dict)
    nodes: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def __call__(self, node: Any) -> tuple[Any, str]:
        """The node, and its digest."""
        text = json.dumps(node, sort_keys=True)
        if text not in self.nodes:
            self.nodes[text] = (node, digest(node))
        return self.nodes[text]

    def text(self, text: str) -> str:
        """The same text, kept once."""
        return str(self(text)[0])

    def kept(self, metrics: Metrics) -> Metrics:
        """The numbers that somebody needs."""
        found: dict[str, dict[str, Value]] = {}
        for name, values in metrics.items():
            needed = self.needed.setdefault(name, {})
            for key, value in values.items():
                if key not in needed:
                    needed[key] = any(keep(name, key) for keep in self.keep)
                if needed[key]:
                    found.setdefault(sys.intern(name), {})[sys.intern(key)] = value
        return found


def run_of(record: ResultRecord, shared: Shared) -> Run:
    """Return what tables need of a record.

    Args:
        record: of a run.
        shared: what it has in common with others.
    """
    config, made = record.config, record.backbone.get("training")
    # Released weights were not trained by openbench, whatever the config says.
    nodes = {name: shared(config.get(name)) for name in NODES if made or name != "training"}
    training, augment, outliers = training_of(record), augmentation_of(record), outliers_of(record)
    version, metrics = int(record.method.get("version", 0)), config.get("metrics")
    name, backbone = str(record.method.get("name")), str(record.backbone.get("name"))
    tune = config.get("tune")
    shared_by_row = [[nodes.get(key, (None, None))[1] for key in NODES], name, backbone, training, augment, outliers]
    return Run(
        run_id=record.run_id,
        benchmark=shared.text(str(record.benchmark.get("name"))),
        digest=shared.text(str(record.benchmark.get("digest"))),
        pristine=record.benchmark.get("pristine") is True,
        deviations=tuple(map(str, record.benchmark.get("deviations") or ())),
        method=name,
        version=version,
        params=shared(record.method.get("params") or {})[0],
        tuned=shared(record.tuned)[0],
        strategy=str(tune.get("strategy", "none")) if isinstance(tune, dict) else "none",
        training=training,
        augment=augment,
        outliers=outliers,
        backbone=backbone,
        network=str(record.backbone.get("digest")),
        seed=config.get("seed"),
        level=float(metrics.get("confidence", 0.95)) if isinstance(metrics, dict) else 0.95,
        nodes={key: node for key, (node, _) in nodes.items()},
        row=digest([shared_by_row, version, (made_by := Made.of(record, digest(shared_by_row))).code]),
        members=shared(_members(record))[0],
        metrics=shared.kept(record.metrics),
        header=shared.text(record.header),
        problems=inconsistencies(record),
        made=made_by,
        complete=all(count["n"] == count["expected"] for count in record.counts.values()),
        utc=str(record.provenance.get("utc") or ""),
        measured=tuple(map(shared.text, record.metrics)),
        cost=cost_of(record),
    )


def cost_of(record: ResultRecord) -> dict[str, float | None]:
    """Return what scoring took: milliseconds per image without cached features, and the peak memory in MiB.

    The time is that of the stage `score` over the images scored; passes of the network are in it only for methods that
    run the network themselves. `pass_ms` is the time of one pass; None if all that the run needed was cached.
    """
    scored = sum(
        int(count.get("n", 0)) for key, count in record.counts.items() if key.partition("/")[0] not in _NOT_SCORED
    )
    seconds, peak = (record.provenance.get(key) for key in ("seconds", "peak_mib"))
    spent = seconds.get("score") if isinstance(seconds, Mapping) else None
    most = peak.get("score") if isinstance(peak, Mapping) else None
    extracting = seconds.get("features") if isinstance(seconds, Mapping) else None
    passes = record.provenance.get("passes")
    of_pass = None
    if isinstance(extracting, float | int) and isinstance(passes, int) and passes > 0:
        of_pass = 1000 * extracting / passes
    return {
        "pass_ms": of_pass,
        "ms": float(f"{1000 * spent / scored:.4g}") if isinstance(spent, float | int) and scored else None,
        "mib": float(most) if isinstance(most, float | int) else None,
    }


def _members(record: ResultRecord) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in sorted(record.counts):
        role, _, name = key.partition("/")
        found.setdefault(role, []).append(name)
    return found
