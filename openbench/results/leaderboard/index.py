"""All records as one columnar table in the cache, so that thousands of records are not parsed each time.

There is a parquet file for each benchmark: a row per record and set or group, a column per metric, and in the first row
of each record its file and, as JSON, what tables need besides. It holds nothing that the records do not and may be
deleted at any time. A record counts as known while its file is in the state that it was read in, and the code is what
it was then.
"""

import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from itertools import groupby, islice
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench import paths
from openbench.core.record import Value
from openbench.digest import bytes_sha256, digest
from openbench.errors import OpenbenchError, RecordError
from openbench.results.leaderboard.runs import Keep, Run, Shared, everything, run_of
from openbench.results.records.store import OnError, RecordStore
from openbench.results.records.superseded import Made
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_FILE, _STATE, _SET = "_file", "_state", "_set"  # columns besides those of metrics and of `_ABOUT`
_ABOUT = {f"_{field.name}": field.name for field in fields(Run) if field.name != "metrics"}
_TUPLES = ("deviations", "problems", "measured")
_CODE = b"code"
_UNABLE = "unable"
_AT_ONCE = 200  # records that are in memory with all their numbers


def indexed_runs(records: RecordStore, keep: Sequence[Keep], on_error: OnError) -> Iterator[Run]:
    """Yield what `runs_of` yields for every record, parsing only records that are new or have changed.

    Args:
        records: of a results folder.
        keep: each, given a set or group and a key, says whether it needs the number.
        on_error: receives an error for each file that is not a record.
    """
    for benchmark, files in groupby(records.paths(on_error), lambda path: path.relative_to(records.folder).parts[0]):
        states = {str(path): _state(path) for path in files}
        file = _cache_file(records.folder / benchmark)
        stored = _stored(file)
        known = _known(stored)
        kept = {path for path, state in states.items() if state and known.get(path) == state}
        fresh = _parsed(records, [path for path in states if path not in kept], on_error)
        tables = [_table(some, states) for some in iter(lambda: list(islice(fresh, _AT_ONCE)), [])]  # noqa: B023
        if tables or 0 < len(kept) < len(known):
            table = _joined(stored.read() if stored is not None and kept else None, kept, tables)
            _write(file, table)
        elif stored is not None and kept:
            table = _needed(stored, keep)
        else:
            continue
        runs = dict(_runs(table, keep))
        yield from (runs[path] for path in states if path in runs)


def _parsed(records: RecordStore, files: Iterable[str], on_error: OnError) -> Iterator[tuple[str, Run]]:
    shared = Shared((everything,))
    for file in files:
        try:
            yield file, run_of(records.read(Path(file)), shared)
        except RecordError as error:
            on_error(error)


def _table(runs: Sequence[tuple[str, Run]], states: Mapping[str, str]) -> "pa.Table":
    """Records as rows; `unable` is NaN, which no record holds, and what a record does not have is null."""
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for file, run in runs:
        about = {column: json.dumps(_plain(getattr(run, name))) for column, name in _ABOUT.items()}
        about |= {_FILE: file, _STATE: states[file]}
        for name, values in (run.metrics or {"": {}}).items():
            numbers = {key: nan if isinstance(value, str) else value for key, value in values.items()}
            rows.append({_SET: name, **about, **numbers})
            about = {}
    columns = dict.fromkeys((_FILE, _STATE, _SET, *_ABOUT)) | dict.fromkeys(key for row in rows for key in row)
    return pa.table({key: [row.get(key) for row in rows] for key in columns})


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Made) else value


def _joined(old: "pa.Table | None", kept: Container[str], new: Sequence["pa.Table"]) -> "pa.Table":
    """The records of an old table that are kept, and new ones."""
    import pyarrow as pa

    tables, mask, keeping = list(new), list[bool](), False
    if old is not None:
        for file in old[_FILE].to_pylist():
            keeping = keeping if file is None else file in kept
            mask.append(keeping)
        tables = [old.filter(pa.array(mask)), *tables]
    return pa.concat_tables(tables, promote_options="permissive")


def _runs(table: "pa.Table", keep: Sequence[Keep]) -> Iterator[tuple[str, Run]]:
    """The records of a table, with the numbers that somebody needs."""
    parsed: dict[str, Any] = {}  # equal texts of many records become one object
    numbers = {key: table[key].to_pylist() for key in table.column_names if key not in (_FILE, _STATE, _SET, *_ABOUT)}
    about = {name: table[column].to_pylist() for column, name in _ABOUT.items()}
    files, sets = table[_FILE].to_pylist(), table[_SET].to_pylist()
    needed = {
        name: [(sys.intern(key), column) for key, column in numbers.items() if any(keeps(name, key) for keeps in keep)]
        for name in set(sets)
    }
    starts = [row for row, text in enumerate(about["run_id"]) if text is not None]
    for start, end in zip(starts, [*starts[1:], len(files)], strict=True):
        metrics: dict[str, dict[str, Value]] = {}
        for row in range(start, end):
            values = {key: column[row] for key, column in needed[sets[row]] if column[row] is not None}
            if values:
                metrics[sets[row]] = {key: _UNABLE if isnan(value) else value for key, value in values.items()}
        held: dict[str, Any] = {}
        for name, texts in about.items():
            text = texts[start]
            if text not in parsed:
                parsed[text] = json.loads(text)
            held[name] = tuple(parsed[text]) if name in _TUPLES else parsed[text]
        yield files[start], Run(**{**held, "metrics": metrics, "made": Made(**held["made"])})


def _stored(file: Path | None) -> "pq.ParquetFile | None":
    """The table in the cache; None if there is none, it is damaged, or other code made it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file is None:
        return None
    try:
        stored = pq.ParquetFile(pa.BufferReader(read_sealed(file)))
    except (DamagedError, FileNotFoundError):
        return None
    return stored if stored.schema_arrow.metadata.get(_CODE) == code_digest().encode() else None


def _known(stored: "pq.ParquetFile | None") -> dict[str, str]:
    """{file of a record: its state when it was read}."""
    if stored is None:
        return {}
    table = stored.read([_FILE, _STATE]).drop_null()
    return dict(zip(table[_FILE].to_pylist(), table[_STATE].to_pylist(), strict=True))


def _needed(stored: "pq.ParquetFile", keep: Sequence[Keep]) -> "pa.Table":
    """The table with those of the metrics that somebody may need."""
    sets = set(stored.read([_SET])[_SET].to_pylist())
    about, names = (_FILE, _STATE, _SET, *_ABOUT), stored.schema_arrow.names
    return stored.read([key for key in names if key in about or any(k(name, key) for k in keep for name in sets)])


def _write(file: Path | None, table: "pa.Table") -> None:
    """Write the table; where the cache cannot be written, records are parsed again next time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if file is not None:
        content = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({_CODE: code_digest()}), content, compression="zstd")
        with suppress(OSError):
            write_sealed(file, content.getvalue().to_pybytes())


def _state(path: Path) -> str:
    """Size, inode and time stamps of a file; empty if it cannot be looked at."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_ino} {found.st_mtime_ns} {found.st_ctime_ns}"


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
    found = [(str(file.relative_to(folder)), bytes_sha256(file.read_bytes())) for folder, file in files]
    return digest([found, sys.version_info[:3]], 32)
