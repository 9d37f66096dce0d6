"""Records as a study looks at them, and which of them a run of the study is."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.public import public
from openbench.results.leaderboard.runs import Keep, Run, runs_of
from openbench.results.records.settings import NONE, RELEASED
from openbench.results.records.superseded import superseded
from openbench.studies.claims import Claim
from openbench.studies.wanted import OUTLIERS, Wanted

_PLAIN = "cross_entropy"
_COMPOSED = ("training", "backbone", "tune", "metrics")
_SPACE = "_space_"
_INTERVALS = ("confidence", "replicates")  # of two records that differ in these alone, a table has a preference


@dataclass(frozen=True)
class Made:
    """A record as far as a study needs it.

    Args:
        run: what tables read of it.
        names: {group: the file that was chosen}.
        values: {dotted key: value} of the keys that the study sets.
        own: hyper-parameters of the method that its config file does not have as they are here.
        nodes: {group: its node of the config}, of released weights without a training.
        seconds: {stage: wall seconds}.
        images: how many were read.
        width: numbers kept of each image: logits and features.
        claim: what it says of its benchmark, if it calls that as defined.
    """

    run: Run
    names: Mapping[str, str]
    values: Mapping[str, Any]
    own: frozenset[str]
    nodes: Mapping[str, Any]
    seconds: Mapping[str, float]
    images: int
    width: int
    claim: Claim | None = None


@dataclass
class Archive:
    """Records by benchmark and method.

    Args:
        made: every record.
        replaced: {run id: by what it was superseded}.
        config_dir: the user's folder of group files.
        judged: {(run id, form of the benchmark): why its word on the benchmark does not count}, as far as it was asked.
    """

    made: Mapping[tuple[str, str], list[Made]]
    replaced: Mapping[str, str] = field(default_factory=dict)
    config_dir: Path | None = None
    judged: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, records: Iterable[ResultRecord], keys: Iterable[str], keep: Keep, config_dir: Path | None = None
    ) -> "Archive":
        """Return the archive of records.

        Args:
            records: read one after the other; only what is needed of each is kept.
            keys: dotted keys of the config that the study sets.
            keep: which numbers of a record are needed.
            config_dir: the user's folder of group files.
        """
        found: dict[tuple[str, str], list[Made]] = {}
        for one in _made(records, frozenset(keys), keep):
            found.setdefault((one.run.benchmark, one.run.method), []).append(one)
        sound = (one.run.made for many in found.values() for one in many if not one.run.problems)
        return cls(found, superseded(sound), config_dir)

    def fitting(self, wanted: Wanted) -> list[Made]:
        """Return the records of a run that nothing speaks against; several, where they were made more than once."""
        candidates = self.made.get((wanted.benchmark, wanted.names["method"]), [])
        alike = [one for one in candidates if self._counts(one) and _fits(one, wanted)]
        return [one for one in alike if _as_composed(one.nodes, _composed(wanted.setting, self.config_dir))]

    def of_benchmark(self, benchmark: str) -> list[Made]:
        """Return every record of a benchmark."""
        return [one for (name, _), many in self.made.items() if name == benchmark for one in many]

    def as_defined(self, one: Made, wanted: Wanted) -> bool:
        """Whether the benchmark of a record is the one that a run asks for, complete and unchanged."""
        return one.run.pristine and not self.doubts(one, wanted)

    def doubts(self, one: Made, wanted: Wanted) -> tuple[str, ...]:
        """Return why a record's word that its benchmark is as defined does not count; empty if it does."""
        if one.claim is None:
            return ()
        key = (one.run.run_id, *wanted.form)
        if key not in self.judged:
            self.judged[key] = one.claim.doubts(wanted, self.config_dir)
        return self.judged[key]

    def state(self, one: Made, wanted: Wanted) -> str:
        """Return the digest of a record's benchmark; apart from it where a record's word alone says so."""
        return f"{one.run.digest} by its word" if self.doubts(one, wanted) else one.run.digest

    def _counts(self, one: Made) -> bool:
        return not one.run.problems and one.run.run_id not in self.replaced


def _fits(one: Made, wanted: Wanted) -> bool:
    names = wanted.names
    return (
        _same_training(one, names)
        and all(one.names[key] == names[key] for key in ("backbone", "tune", "seed", "augment") if key in names)
        and all(_same(one.values.get(key), value) for key, value in wanted.values.items())
        and all(any(f"{word}.".startswith(f"method.{key}.") for word in wanted.values) for key in one.own)
        and (one.names[OUTLIERS] in (NONE, names.get(OUTLIERS, NONE)))
    )


def _same_training(one: Made, names: Mapping[str, str]) -> bool:
    """Whether the network was trained as wanted; released weights are those of plain training."""
    found, plain = one.names["training"], names["training"] in (_PLAIN, RELEASED)
    return found == names["training"] or (found == RELEASED and plain)


@lru_cache(maxsize=1024)
def _composed(words: tuple[str, ...], config_dir: Path | None) -> Mapping[str, Any]:
    """What Hydra makes of the overrides of a run: {group: its node}."""
    from openbench.compose.composed import composed

    config = composed("run", words, config_dir).config
    return {group: public(config.get(group)) for group in _COMPOSED}


def _as_composed(found: Any, asked: Any) -> bool:
    """Whether what a record's config and today's config files both have is the same; keys of only one do not count."""
    if isinstance(found, Mapping) and isinstance(asked, Mapping):
        return all(_as_composed(found[key], asked[key]) for key in found if key in asked)
    return _same(found, asked)


def _same(found: Any, value: Any) -> bool:
    """Whether a value of a config is the one that was typed; a reference to another key may be any."""
    return digest(found) == digest(value) or (isinstance(value, str) and "${" in value)


def _made(records: Iterable[ResultRecord], keys: frozenset[str], keep: Keep) -> Iterator[Made]:
    read: list[ResultRecord] = []

    def noted() -> Iterator[ResultRecord]:
        for record in records:
            read[:] = [record]
            yield record

    for run in runs_of(noted(), (keep,)):
        (record,) = read
        yield Made(
            run=run,
            names=_names(record, run),
            values={key: _leaf(record.config, key) for key in keys},
            own=_own(record),
            nodes=_nodes(record, run),
            seconds=_seconds(record),
            images=sum(count["n"] for count in record.counts.values()),
            claim=Claim.of(record),
            width=sum(int(record.backbone.get(key) or 0) for key in ("feature_dim", "num_classes")),
        )


def _names(record: ResultRecord, run: Run) -> dict[str, str]:
    chosen: Callable[[str], str] = lambda group: str((record.config.get(group) or {}).get(NAME))  # noqa: E731
    tune = chosen("tune")
    return {
        "backbone": chosen("backbone") if chosen("backbone") != "None" else run.backbone,
        "training": run.training,
        "augment": run.augment,
        OUTLIERS: run.outliers,
        "tune": tune if tune != "None" else run.strategy,
        "seed": str(run.seed),
    }


def _nodes(record: ResultRecord, run: Run) -> dict[str, Any]:
    metrics = record.config.get("metrics")
    known = metrics.items() if isinstance(metrics, Mapping) else ()
    numbers = {k: v for k, v in known if not (isinstance(v, list) or k.startswith("_") or k in _INTERVALS)}
    return {**{key: node for key, node in run.nodes.items() if key in _COMPOSED}, "metrics": numbers}


def _own(record: ResultRecord) -> frozenset[str]:
    """The hyper-parameters that were not what the method's config file says, tuned ones aside."""
    node = record.config.get("method") or {}
    classes = (record.config.get("benchmark") or {}).get("classes")
    data = classes.partition("/")[0] if isinstance(classes, str) else ""
    default = _default(str(node.get(NAME)), data)
    if default is None:
        return frozenset()
    given = {key: value for key, value in node.items() if key == _SPACE or not str(key).startswith("_")}
    return frozenset(key for key, value in given.items() if not _same(value, default.get(key)))


@lru_cache
def _default(method: str, data: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = public(shipped("method", method, data))
    return found


def _seconds(record: ResultRecord) -> dict[str, float]:
    found = record.provenance.get("seconds")
    pairs = found.items() if isinstance(found, Mapping) else ()
    return {str(stage): float(value) for stage, value in pairs if isinstance(value, float | int)}


def _leaf(node: Any, key: str) -> Any:
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
