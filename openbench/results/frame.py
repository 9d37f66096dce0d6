"""What tables need of all records: boards, views, the site, `recommend` and `openbench.records()` read it from here.

A parquet file for each benchmark is cached, so that thousands of records are not parsed each time. It may be deleted at
any time. A record is parsed again when its file or openbench's code has changed.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from io import BytesIO
from itertools import groupby
from math import isnan, nan
from pathlib import Path
from time import time_ns
from typing import Any

from pydantic_core import from_json

from openbench import paths
from openbench.config.overrides import ATTACK, OUTLIERS
from openbench.core.names import is_stream
from openbench.core.record import SOURCES, UNCOMMITTED, ResultRecord, Value
from openbench.core.request import Role
from openbench.digest import bytes_sha256, digest
from openbench.errors import OpenbenchError, RecordError, listed
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.records import settings
from openbench.results.records.store import OnError, RecordStore, ignore
from openbench.results.tables.views import members_of, tuned_by
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

Metrics = Mapping[str, Mapping[str, Value]]
Keep = Callable[[str, str], bool]  # of a set or group and a key: whether somebody needs the number

# What the runs of a row of the leaderboard have in common: the config except for the seed, how numbers are reported,
# and the benchmark, which is compared by its digest.
NODES = ("training", "backbone", "method", "tune")
_INTERVALS = ("confidence", "replicates")
CURVE_OPTIONS = ("delta", "correction", "autc_scaling", "autc_weight")  # of metrics, on which curves depend
ID = "id"
# Columns of the table; after `run.` comes a field of a run, after `metric.` the key.
_STATE, _SET, _RUN, _METRIC = "state", "set", "run.", "metric."
_UNABLE = "unable"
_SHOWN = 8  # digits of a digest
_NOT_SCORED = (Role.ID_TRAIN, Role.OOD_TRAIN)


@dataclass  # not frozen: thousands are made, in a third of the time
class Run:
    """What tables need of one record.

    Args:
        run_id: of the record.
        benchmark: its name.
        digest: of the benchmark.
        pristine: whether the benchmark is as defined.
        complete: whether no image of any set is missing.
        deviations: where the benchmark is not as defined.
        method: what users type after `method=`.
        version: of the method.
        params: all hyper-parameters.
        written: the same as tables show them.
        chosen: hyper-parameters that were tuned or set by the user.
        tuned: those chosen on validation.
        tuned_on: on which data they were chosen; empty if none were.
        given: digest of its scores if they were given, so that nobody ran its code; empty for a run.
        strategy: how they were chosen, e.g. `validation`, `none`, `oracle`.
        training: how the backbone was trained.
        augment: with which augmentation.
        outliers: on which outliers.
        backbone: its name.
        network: digest of the backbone with its weights; of given scores, that of the scores.
        seed: of the run.
        level: confidence level of its intervals.
        nodes: of the config that the runs of a row share; none of the training for released weights.
        options: of metrics, on which curves depend.
        setting: digest of what the runs of a row share, but for the code.
        config_key: digest of what numbers depend on but for the benchmark, see `config_key`.
        benchmark_key: digest of the benchmark's node, see `benchmark_key`.
        code: digest of the method's version and of code that openbench does not ship or had not committed.
        sources: {module: SHA-256} of code that openbench does not ship.
        uncommitted: {file: SHA-256} of openbench's files that differed from the commit.
        members: {role: names of its sets}.
        measured: all sets and groups that have numbers.
        stream: whether its numbers are of streams, so that they depend on the order of the images.
        header: the line of conventions.
        problems: what in the record does not follow from the rest of it.
        utc: when it was made, as the record states it.
        images: how many were read.
        sizes: {role: how many images its sets have}.
        trials: how many settings tuning tried.
        passes: images that the network read in this run, once for each time; None if that was not recorded.
        width: numbers per image in the cache: logits and features.
        seconds: {stage: wall seconds}.
        ms: milliseconds per image that scoring took without cached features; None if that was not timed.
        pass_ms: milliseconds of one pass of the network; None if all that the run needed was cached.
        mib: peak memory of the process while it scored.
        metrics: {set or group: {key: value}}, as far as they were requested.
    """

    run_id: str
    benchmark: str
    digest: str
    pristine: bool
    complete: bool
    deviations: Sequence[str]
    method: str
    version: int
    params: Mapping[str, Any]
    written: str
    chosen: Mapping[str, Any]
    tuned: Mapping[str, Any]
    tuned_on: str
    given: str
    strategy: str
    training: str
    augment: str
    outliers: str
    backbone: str
    network: str
    seed: int | None
    level: float
    nodes: Mapping[str, Any]
    options: Mapping[str, Any]
    setting: str
    config_key: str
    benchmark_key: str
    code: str
    sources: Mapping[str, str]
    uncommitted: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
    measured: Sequence[str]
    stream: bool
    header: str
    problems: Sequence[str]
    utc: str
    images: int
    sizes: Mapping[str, int]
    trials: int
    passes: int | None
    width: int
    seconds: Mapping[str, float]
    ms: float | None
    pass_ms: float | None
    mib: float | None
    metrics: Metrics = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The file of its record, as from the folder of the records."""
        return f"{self.benchmark}/{self.backbone}/{self.method}/{self.run_id}.json"

    @property
    def row(self) -> str:
        """What the runs of a row of the leaderboard share: all but the seed, and how numbers are reported."""
        return f"{self.setting} {self.code}"


def everything(name: str, key: str) -> bool:
    """Keep every number."""
    return True


def run_of(record: ResultRecord, keep: Keep = everything) -> Run:
    """Return what tables need of a record.

    Args:
        record: of a run.
        keep: given a set or group and a key, says whether somebody needs the number.
    """
    config, provenance = record.config, record.provenance
    trained = record.backbone.get("training")
    # Released weights were not trained by openbench, whatever the config says.
    nodes = {name: config.get(name) if trained or name != "training" else None for name in NODES}
    training, augment, outliers = (
        settings.training_of(record),
        settings.augmentation_of(record),
        settings.outliers_of(record),
    )
    name, backbone = str(record.method.get("name")), str(record.backbone.get("name"))
    version, params = int(record.method.get("version", 0)), record.method.get("params") or {}
    sources, uncommitted = provenance.get(SOURCES) or {}, provenance.get(UNCOMMITTED) or {}
    metrics, strategy = config.get("metrics") or {}, (config.get("tune") or {}).get("strategy", "none")
    numbers = {of: {k: v for k, v in values.items() if keep(of, k)} for of, values in record.metrics.items()}
    attack = [config[ATTACK]] if ATTACK in config else []
    given = [settings.given_of(record)] if settings.given_of(record) and config.get("seed") is None else []
    digests = [_digest(node) for node in nodes.values()]
    shared = {**nodes, "scores": given[0][:_SHOWN]} if given else nodes
    return Run(
        run_id=record.run_id,
        benchmark=str(record.benchmark.get("name")),
        digest=str(record.benchmark.get("digest")),
        pristine=record.benchmark.get("pristine") is True,
        complete=all(count["n"] == count["expected"] for count in record.counts.values()),
        deviations=list(map(str, record.benchmark.get("deviations") or ())),
        method=name,
        version=version,
        params=params,
        written=settings.hyper_parameters(params),
        chosen=settings.not_default(nodes["method"] or {}, params, record.tuned),
        tuned=record.tuned,
        tuned_on=tuned_by(strategy) if record.tuned else "",
        given=settings.given_of(record),
        strategy=strategy,
        training=training,
        augment=augment,
        outliers=outliers,
        backbone=backbone,
        network=str(record.backbone.get("digest") or settings.given_of(record) or None),
        seed=config.get("seed"),
        level=float(metrics.get("confidence", 0.95)),
        nodes={k: node for k, node in shared.items() if k != "training" or node is not None},
        options={key: metrics[key] for key in CURVE_OPTIONS if key in metrics},
        config_key=config_key({**config, **nodes}),
        benchmark_key=benchmark_key(config.get("benchmark")),
        setting=digest([digests, name, backbone, training, augment, outliers, *attack, *given]),
        code=digest([version, sources, uncommitted]),
        sources=sources,
        uncommitted=uncommitted,
        members=members_of(record),
        measured=list(record.metrics),
        stream=is_stream(record.metrics),
        header=record.header,
        problems=list(inconsistencies(record)),
        utc=str(provenance.get("utc") or ""),
        images=sum(count["n"] for count in record.counts.values()),
        sizes=_sizes(record),
        trials=len(record.trials),
        passes=provenance.get("passes"),
        width=sum(int(record.backbone.get(key) or 0) for key in ("feature_dim", "num_classes")),
        seconds={stage: float(seconds) for stage, seconds in (provenance.get("seconds") or {}).items()},
        **cost_of(record),
        metrics={of: values for of, values in numbers.items() if values},
    )


def config_key(config: Mapping[str, Any]) -> str:
    """Return the digest of what the numbers of a run depend on, the benchmark aside.

    Which metrics were computed and how wide intervals are does not matter.

    Args:
        config: the scientific config; `training` is None for released weights, which openbench did not train.
    """
    metrics = config.get("metrics") or {}
    options = {k: v for k, v in metrics.items() if not (isinstance(v, list) or k.startswith("_") or k in _INTERVALS)}
    attack = [_digest(config[ATTACK])] if ATTACK in config else []
    return digest([*(_digest(config.get(key)) for key in (*NODES, OUTLIERS)), options, config.get("seed"), *attack])


def benchmark_key(node: Any) -> str:
    """Return the digest of the config of a benchmark; whether images may be missing does not matter."""
    return _digest({key: value for key, value in (node or {}).items() if key != "incomplete"})


def _sizes(record: ResultRecord) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for key, count in record.counts.items():
        sizes[key.partition("/")[0]] += count["n"]
    return dict(sizes)


def _digest(node: Any) -> str:
    return _digest_of(json.dumps(node, sort_keys=True))


@lru_cache(maxsize=4096)  # records share most of their nodes
def _digest_of(text: str) -> str:
    return digest(json.loads(text))


def cost_of(record: ResultRecord) -> dict[str, float | None]:
    """Return what scoring took: milliseconds per image without cached features, and the peak memory in MiB.

    The time is that of the stage `score` over the images scored; passes of the network are in it only for methods that
    run the network themselves. `pass_ms` is the time of one pass; None if all that the run needed was cached.
    """
    counts = record.counts.items()
    scored = sum(int(count.get("n", 0)) for key, count in counts if key.partition("/")[0] not in _NOT_SCORED)
    provenance = record.provenance
    seconds, peak = (provenance.get(key) or {} for key in ("seconds", "peak_mib"))
    passes = provenance.get("passes")
    return {
        "pass_ms": 1000 * seconds["features"] / passes if passes and "features" in seconds else None,
        "ms": float(f"{1000 * seconds['score'] / scored:.4g}") if scored and "score" in seconds else None,
        "mib": float(peak["score"]) if "score" in peak else None,
    }


def runs(records: RecordStore, on_error: OnError, *keep: Keep) -> Iterator[Run]:
    """Yield what tables need of every record, in the order of the files; only new or changed records are parsed.

    Args:
        records: of a results folder.
        on_error: receives an error for each file that is not a record.
        *keep: each, given a set or group and a key, says whether it needs the number.
    """
    needed = cache(lambda name, key: any(keeps(name, key) for keeps in keep))
    for benchmark, files in groupby(records.paths(on_error), lambda path: path.parts[-4]):
        states, folder = {_state(file): file for file in files}, records.folder / benchmark
        if content := _up_to_date(records, folder, states, on_error):
            found = dict(_stored_runs(content, needed))
            yield from (found[state] for state in states if state in found)


def _up_to_date(records: RecordStore, folder: Path, states: Mapping[str, Path], on_error: OnError) -> bytes:
    """The table of a benchmark as parquet: a row for each set of each record; empty without records.

    The first row of a record has what the record says of its run, as JSON: a text for each field, since most of them
    recur. `unable` is NaN. A record is known by the state of its file; where the cache cannot be written, records are
    parsed again next time.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    file, content = _cache_file(folder), b""
    with suppress(DamagedError, FileNotFoundError):
        content = read_sealed(file) if file is not None else b""
    stored = pq.ParquetFile(pa.BufferReader(content)).read([_STATE]) if content else None
    known = set(stored[_STATE].unique().to_pylist()) if stored is not None else set[str]()
    rows: list[dict[str, Any]] = []
    for state in [state for state in states if state not in known]:
        try:
            rows += _rows(state, run_of(records.read(states[state])))
        except RecordError as error:
            on_error(error)
    if not rows and known <= states.keys():
        return content
    tables = [pa.Table.from_struct_array(pa.array(rows))] if rows else []
    if kept := known & states.keys():
        old = pq.ParquetFile(pa.BufferReader(content)).read()
        tables.append(old.filter(pc.is_in(old[_STATE], pa.array(list(kept)))))
    stream = BytesIO()
    if tables:
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), stream)
    if file is not None:
        with suppress(OSError):
            write_sealed(file, stream.getvalue())
    return stream.getvalue()


def _rows(state: str, run: Run) -> Iterator[dict[str, Any]]:
    """A row for each set of a run; one if it has none."""
    facts = {_RUN + key: json.dumps(value) for key, value in vars(run).items() if key != "metrics"}
    for name, values in (run.metrics or {"": {}}).items():
        numbers = {_METRIC + key: _stored(value) for key, value in values.items()}
        yield {_STATE: state, _SET: name, **facts, **numbers}
        facts = {}


def _stored(value: Value) -> float:
    """A number as a column holds it: beyond 2⁵³, where whole numbers do not fit beside others, as a double."""
    return nan if isinstance(value, str) else value if abs(value) <= 1 << 53 else float(value)


def _stored_runs(content: bytes, needed: Keep) -> Iterator[tuple[str, Run]]:
    """Yield each run of a table with the state of its record's file."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    facts = [_RUN + one.name for one in fields(Run) if one.name != "metrics"]
    table = pq.ParquetFile(pa.BufferReader(content), read_dictionary=facts)
    keys = [name.removeprefix(_METRIC) for name in table.schema_arrow.names if name.startswith(_METRIC)]
    names = table.read([_SET])[_SET].unique().to_pylist()
    keys = [key for key in keys if any(needed(name, key) for name in names)]
    asked = {name: [at for at, key in enumerate(keys) if needed(name, key)] for name in names}
    rows = table.read([_STATE, _SET, *(_METRIC + key for key in keys)])
    metrics: dict[str, dict[str, dict[str, Value]]] = {}
    for state, name, *values in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        known = {keys[at]: _UNABLE if isnan(v) else v for at in asked[name] if (v := values[at]) is not None}
        if known:
            metrics.setdefault(state, {})[name] = known
    first = table.read([_STATE, *facts])
    first = first.filter(pc.is_valid(first[facts[0]]))
    for state, *values in zip(first[_STATE].to_pylist(), *(_parsed(first[name]) for name in facts), strict=True):
        yield state, Run(*[*values, metrics.get(state, {})])  # by name they take ten times as long


def _parsed(column: Any) -> list[Any]:
    """The values of a column of JSON; each text is parsed once."""
    encoded = column.combine_chunks()
    values = [from_json(text) for text in encoded.dictionary.to_pylist()]
    return [values[index] for index in encoded.indices.to_pylist()]


def _state(file: Path) -> str:
    """The place, size, inode and time stamps of a record's file, and the code that reads it."""
    place = f"{code_digest()} {'/'.join(file.parts[-3:])}"
    try:
        stat = os.stat(file)
    except OSError:
        return f"{place} {time_ns()}"  # so that it is read again
    return f"{place} {stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}"


def _cache_file(folder: Path) -> Path | None:
    """Where the table of a folder is; None if there is no cache."""
    try:
        return paths.cache_dir() / "records" / f"{digest(str(folder.absolute()), 32)}.parquet"
    except OpenbenchError:
        return None


@cache
def code_digest() -> str:
    """Return a digest of openbench's own files and Python's version, on which it depends what is read of records.

    An augmentation, for instance, has the name of its file.
    """
    folders = (Path(paths.__file__).parent, "*.py"), (paths.config_dir(), "*.yaml")
    files = [(folder, file) for folder, form in folders for file in sorted(folder.rglob(form))]
    digests = [(str(file.relative_to(folder)), bytes_sha256(file.read_bytes())) for folder, file in files]
    return digest([digests, sys.version_info[:3]], 32)


def superseded(runs: Iterable[Run]) -> dict[str, str]:
    """Return {run id: by which record it is superseded, and why}; records made by the same code stand side by side.

    Args:
        runs: of one benchmark, of any number of settings.
    """
    settings: dict[str, list[Run]] = {}
    for run in runs:
        settings.setdefault(run.setting, []).append(run)
    reasons = {}
    for alike in settings.values():
        # Committed before uncommitted, then the higher version, then the later one.
        latest = max(alike, key=lambda run: (not run.uncommitted, run.version, run.utc, run.run_id))
        for run in alike:
            if run.code != latest.code:
                reasons[run.run_id] = f"superseded by {latest.run_id}: {_why(run, latest)}"
    return reasons


def superseding(record: ResultRecord, results: RecordStore) -> tuple[list[str], str]:
    """Return the run ids of records that a record supersedes, each with why, and by which it is superseded itself.

    Args:
        record: any, in its store or not.
        results: where the others are.
    """
    run = run_of(record)
    neighbours = results.of_method(run.benchmark, run.backbone, run.method, ignore)
    runs = {other.run_id: run_of(other) for other, _ in neighbours} | {run.run_id: run}
    alike = [r for r in runs.values() if (r.setting, r.seed, r.digest) == (run.setting, run.seed, run.digest)]
    reasons = superseded(alike)
    others = [f"{run_id} ({why.partition(': ')[2]})" for run_id, why in reasons.items() if f"by {run.run_id}:" in why]
    return sorted(others), reasons.get(run.run_id, "")


def _why(old: Run, new: Run) -> str:
    if old.uncommitted != new.uncommitted:
        if old.uncommitted:
            return f"it was made from uncommitted changes in {listed(old.uncommitted)}"
        return f"openbench has uncommitted changes since, in {listed(new.uncommitted)}"
    if old.version != new.version:
        return f"made by version {old.version} of the method, which is now at {new.version}"
    names = sorted({*old.sources, *new.sources})
    return f"made before a change of {listed(name for name in names if old.sources.get(name) != new.sources.get(name))}"
