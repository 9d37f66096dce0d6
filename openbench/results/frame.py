"""All records as one table, from which boards, views, the site, `recommend` and `openbench.records()` read.

A row is a set or group of a record on one ID side: what the record says of its run, the same in all of its rows, and a
column per metric. `unable` is NaN; what a record does not have is null.

The table is cached as a parquet file for each benchmark, so that thousands of records are not parsed each time. It may
be deleted at any time. A record is parsed again when its file or openbench's code has changed.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, lru_cache
from itertools import groupby, islice
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench import paths
from openbench.config.overrides import ATTACK, OUTLIERS
from openbench.core.names import ATTACKED, FULL_SPECTRUM, is_stream
from openbench.core.record import SOURCES, UNCOMMITTED, ResultRecord, Value
from openbench.core.request import Role
from openbench.digest import bytes_sha256, digest
from openbench.errors import OpenbenchError, RecordError
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.records.settings import (
    augmentation_of,
    given_of,
    hyper_parameters,
    not_default,
    outliers_of,
    training_of,
)
from openbench.results.records.store import OnError, RecordStore
from openbench.results.tables.views import members_of, ordered, role_in, tuned_by
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Metrics = Mapping[str, Mapping[str, Value]]
Keep = Callable[[str, str], bool]  # of a set or group and a key: whether somebody needs the number

# What the runs of a row of the leaderboard have in common: the config except for the seed, how numbers are reported,
# and the benchmark, which is compared by its digest.
NODES = ("training", "backbone", "method", "tune")
SIDES = ("", FULL_SPECTRUM, ATTACKED)
_INTERVALS = ("confidence", "replicates")
ID = "id"
METRIC = "metric."  # before the key of a metric, in the names of columns
_FILE, _STATE, _FIRST = "file", "state", "first"
_PLACE = ("side", "role", "set")
_CODE = b"code"
_EXACT = 2**53  # whole numbers up to here are floats
_UNABLE = "unable"
_SHOWN = 8  # digits of a digest
_AT_ONCE = 200  # records that are in memory with all their numbers
_NOT_SCORED = (Role.ID_TRAIN, Role.OOD_TRAIN)


@dataclass(frozen=True)
class Run:
    """What tables need of one record; but for the numbers, a column of the table for each.

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
        training_node: of the config; None for released weights, which openbench did not train.
        backbone_node: of the config.
        method_node: of the config.
        tune_node: of the config.
        metrics_node: of the config.
        setting: digest of what the runs of a row share, but for the code.
        config_key: digest of what numbers depend on but for the benchmark, see `config_key`.
        benchmark_key: digest of the benchmark's node, see `benchmark_key`.
        code: digest of the method's version and of code that openbench does not ship or had not committed.
        sources: {module: SHA-256} of code that openbench does not ship.
        uncommitted: {file: SHA-256} of openbench's files that differed from the commit.
        members: {role: names of its sets}.
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
    training_node: Any
    backbone_node: Any
    method_node: Any
    tune_node: Any
    metrics_node: Any
    setting: str
    config_key: str
    benchmark_key: str
    code: str
    sources: Mapping[str, str]
    uncommitted: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
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

    @property
    def nodes(self) -> dict[str, Any]:
        """The nodes of the config that the runs of a row share."""
        nodes = {name: getattr(self, f"{name}_node") for name in NODES}
        nodes |= {"scores": self.given[:_SHOWN]} if self.given and self.seed is None else {}
        return nodes if self.training_node is not None else {k: v for k, v in nodes.items() if k != "training"}


FACTS = tuple(each.name for each in fields(Run) if each.name != "metrics")
_PLAIN = (str, bool, int, float, int | None, float | None)
_JSON = frozenset(each.name for each in fields(Run) if each.name in FACTS and each.type not in _PLAIN)


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
    training, augment, outliers = training_of(record), augmentation_of(record), outliers_of(record)
    name, backbone = str(record.method.get("name")), str(record.backbone.get("name"))
    version, params = int(record.method.get("version", 0)), record.method.get("params") or {}
    sources, uncommitted = provenance.get(SOURCES) or {}, provenance.get(UNCOMMITTED) or {}
    metrics, strategy = config.get("metrics"), (config.get("tune") or {}).get("strategy", "none")
    numbers = {of: {k: v for k, v in values.items() if keep(of, k)} for of, values in record.metrics.items()}
    attack = [config[ATTACK]] if ATTACK in config else []
    given = [given_of(record)] if given_of(record) and config.get("seed") is None else []
    digests = [_digest(node) for node in nodes.values()]
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
        written=hyper_parameters(params),
        chosen=not_default(nodes["method"] or {}, params, record.tuned),
        tuned=record.tuned,
        tuned_on=tuned_by(strategy) if record.tuned else "",
        given=given_of(record),
        strategy=strategy,
        training=training,
        augment=augment,
        outliers=outliers,
        backbone=backbone,
        network=str(record.backbone.get("digest") or given_of(record) or None),
        seed=config.get("seed"),
        level=float((metrics or {}).get("confidence", 0.95)),
        **{f"{key}_node": node for key, node in nodes.items()},
        metrics_node=metrics,
        config_key=config_key({**config, **nodes}),
        benchmark_key=benchmark_key(config.get("benchmark")),
        setting=digest([digests, name, backbone, training, augment, outliers, *attack, *given]),
        code=digest([version, sources, uncommitted]),
        sources=sources,
        uncommitted=uncommitted,
        members=members_of(record),
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
    """Yield what tables need of every record, in the order of the files.

    Args:
        records: of a results folder.
        on_error: receives an error for each file that is not a record.
        *keep: each, given a set or group and a key, says whether it needs the number.
    """
    for table in tables(records, on_error, *keep):
        yield from _runs(table, keep)


def tables(records: RecordStore, on_error: OnError, *keep: Keep, facts: Sequence[str] = FACTS) -> "Iterator[pa.Table]":
    """Yield the table of each benchmark, in the order of the files; only records that are new or changed are parsed.

    Columns: `file`, `first` (of the rows of a record), `side` (nothing or `full_spectrum/`), `role`, `set`, those of
    `facts`, and `metric.KEY`.

    Args:
        records: of a results folder.
        on_error: receives an error for each file that is not a record.
        *keep: which metrics become columns: those of which any of these needs a number.
        facts: which of FACTS become columns.
    """
    start = len(str(records.folder)) + 1
    every = ((path, str(path)[start:].replace(os.sep, "/")) for path in records.paths(on_error))
    for benchmark, files in groupby(every, lambda each: each[1].partition("/")[0]):
        states = {name: _state(path) for path, name in files}
        stored = _up_to_date(records, _cache_file(records.folder / benchmark), states, on_error)
        if stored is not None:
            yield stored.read(_columns(stored, keep, facts)).unify_dictionaries().combine_chunks()


def whole(records: RecordStore, on_error: OnError, *keep: Keep, facts: Sequence[str] = FACTS) -> "pa.Table":
    """Return the tables of all benchmarks as one, with the columns also where there is no record; see `tables`."""
    import pyarrow as pa

    none = pa.schema({name: _types()[name] for name in (_FILE, _FIRST, *_PLACE, *facts)}).empty_table()
    table = pa.concat_tables([none, *tables(records, on_error, *keep, facts=facts)], promote_options="permissive")
    return table.unify_dictionaries().combine_chunks()


def _up_to_date(
    records: RecordStore, file: Path | None, states: Mapping[str, str], on_error: OnError
) -> "pq.ParquetFile | None":
    """The table of a benchmark as its files are now; None without records."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stored = _stored(file)
    known = {} if stored is None else _states(stored)
    unchanged = {name for name, state in states.items() if state and known.get(name) == state}
    tables = list(_parsed(records, {name: state for name, state in states.items() if name not in unchanged}, on_error))
    if not tables and len(unchanged) == len(known):
        return stored
    if unchanged and stored is not None:
        old = stored.read()
        tables.append(old.filter(pc.is_in(old[_FILE].cast(pa.string()), pa.array(list(unchanged)))))
    if not tables:
        return None
    table = pa.concat_tables(tables, promote_options="permissive")
    if unchanged:
        order = pc.index_in(table[_FILE].cast(pa.string()), pa.array(list(states)))
        table = table.take(pc.sort_indices(order))
    return _write(file, table)


def _parsed(records: RecordStore, states: Mapping[str, str], on_error: OnError) -> "Iterator[pa.Table]":
    """The tables of a few records after the other."""
    names = iter(states)
    while some := list(islice(names, _AT_ONCE)):
        batch = {}
        for name in some:
            try:
                batch[name] = records.read(records.folder / name)
            except RecordError as error:
                on_error(error)
        if batch:
            yield _table(batch, states)


def _table(records: Mapping[str, ResultRecord], states: Mapping[str, str]) -> "pa.Table":
    """Records as rows."""
    import pyarrow as pa

    types, rows = _types(), 0
    about: dict[str, list[Any]] = {name: [] for name in types}
    numbers: dict[str, list[float | None]] = {}
    for file, record in records.items():
        run = run_of(record)
        facts = {name: getattr(run, name) for name in FACTS}
        facts = {_FILE: file, _STATE: states[file], **facts, **{name: json.dumps(facts[name]) for name in _JSON}}
        for place, (side, role, name) in enumerate(_places(record, run.members)):
            for column, value in {**facts, _FIRST: not place, "side": side, "role": role, "set": name}.items():
                about[column].append(value)
            for key, value in record.metrics.get(side + name, {}).items():
                numbers.setdefault(key, []).extend([None] * (rows - len(numbers[key])))
                numbers[key].append(_number(key, value))
            rows += 1
    columns = {name: pa.array(values, types[name]) for name, values in about.items()}
    columns |= {METRIC + key: pa.array(values + [None] * (rows - len(values))) for key, values in numbers.items()}
    return pa.table(columns)


def _places(record: ResultRecord, members: Mapping[str, Sequence[str]]) -> list[tuple[str, str, str]]:
    """Side, role and name of each set and group in the order of tables, then of ID; one without names if none is."""
    named = [(role_in(members, name), name) for name in ordered(record.metrics, members)]
    places = [(side, *each) for each in (*named, (ID, ID)) for side in SIDES if side + each[1] in record.metrics]
    return places or [("", "", "")]


def _number(key: str, value: Value) -> float:
    """A count stays a whole number; `unable` is NaN, which no record holds."""
    if isinstance(value, str):
        return nan
    return value if key.startswith("n_") and abs(value) < _EXACT else float(value)


@cache
def _types() -> "dict[str, pa.DataType]":
    """The types of all columns but metrics; texts, and JSON, of which most records have the same few, are coded."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    known: dict[Any, pa.DataType] = {
        bool: pa.bool_(),
        int: pa.int64(),
        int | None: pa.int64(),
        float: pa.float64(),
        float | None: pa.float64(),
    }
    facts = {each.name: known.get(each.type, text) for each in fields(Run) if each.name in FACTS}
    return {**dict.fromkeys((_FILE, _STATE, *_PLACE), text), _FIRST: pa.bool_(), **facts}


def _columns(stored: "pq.ParquetFile", keep: Sequence[Keep], facts: Sequence[str]) -> list[str]:
    """The columns that somebody needs."""
    places = stored.read(["side", "set"])
    names = [side + name for side in places["side"].unique().to_pylist() for name in places["set"].unique().to_pylist()]
    keys = [name.removeprefix(METRIC) for name in stored.schema_arrow.names if name.startswith(METRIC)]
    needed = [METRIC + key for key in keys if any(keeps(name, key) for keeps in keep for name in names)]
    return [_FILE, _FIRST, *_PLACE, *facts, *needed]


def _runs(table: "pa.Table", keep: Sequence[Keep]) -> Iterator[Run]:
    """The records of a table, with the numbers that somebody needs."""
    # Only what needs no pandas, which takes long to load: no scalars, and no lists made into arrays.
    first_rows = table.filter(table[_FIRST]).combine_chunks()
    facts = {name: _values(first_rows[name].chunk(0), name in _JSON) for name in FACTS}
    starts = [row for row, is_first in enumerate(table[_FIRST].to_pylist()) if is_first]
    ends = [*starts[1:], table.num_rows]
    for first in range(0, len(ends), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        rows = _numbers(table.slice(starts[first], ends[some][-1] - starts[first]), keep)
        for at, start, end in zip(range(len(ends))[some], starts[some], ends[some], strict=True):
            metrics = {place: values for place, values in islice(rows, end - start) if values}
            yield Run(**{name: values[at] for name, values in facts.items()}, metrics=metrics)


def _values(column: "pa.Array", is_json: bool = False) -> list[Any]:
    """The values of a column; equal texts and equal JSON become one object."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    texts = column.dictionary.to_pylist()
    codes = column.indices.to_pylist()
    known = {code: json.loads(texts[code]) if is_json else texts[code] for code in set(codes)}
    return [known[code] for code in codes]


def _numbers(table: "pa.Table", keep: Sequence[Keep]) -> Iterator[tuple[str, dict[str, Value]]]:
    """The name of each row of a table, with the numbers that somebody needs."""
    sides, sets = (_values(table[key].chunk(0)) for key in ("side", "set"))
    names = [side + name for side, name in zip(sides, sets, strict=True)]
    rows: list[dict[str, Value]] = [{} for _ in names]
    for key in (sys.intern(name.removeprefix(METRIC)) for name in table.column_names if name.startswith(METRIC)):
        needed = {name for name in set(names) if any(keeps(name, key) for keeps in keep)}
        for name, row, value in zip(names, rows, table[METRIC + key].to_pylist(), strict=True):
            if value is not None and name in needed:
                row[key] = _UNABLE if isnan(value) else value
    return zip(names, rows, strict=True)


def _stored(file: Path | None) -> "pq.ParquetFile | None":
    """The table in the cache; None if there is none, it is damaged, or other code made it."""
    if file is None:
        return None
    try:
        stored = _parquet(read_sealed(file))
    except (DamagedError, FileNotFoundError):
        return None
    return stored if stored.schema_arrow.metadata.get(_CODE) == code_digest().encode() else None


def _parquet(content: bytes) -> "pq.ParquetFile":
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(content))


def _states(stored: "pq.ParquetFile") -> dict[str, str]:
    """{file of a record: its state when it was read}."""
    table = stored.read([_FILE, _STATE]).unify_dictionaries().combine_chunks()
    return dict(zip(*(_values(table[name].chunk(0)) for name in (_FILE, _STATE)), strict=True))


def _write(file: Path | None, table: "pa.Table") -> "pq.ParquetFile":
    """Write and return a table; where the cache cannot be written, records are parsed again next time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_CODE: code_digest()}), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    if file is not None:
        with suppress(OSError):
            write_sealed(file, content)
    return _parquet(content)


def _state(path: Path) -> str:
    """Size, inode and time stamps of a file; empty if it cannot be looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_ino} {stat.st_mtime_ns} {stat.st_ctime_ns}"


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
