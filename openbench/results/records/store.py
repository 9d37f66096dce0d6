"""Write-once records on disk: one JSON file per run, named by the run's digest."""

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench.core.names import PART, WORDS, is_page, is_part, is_words
from openbench.core.record import LARGEST as LARGEST_NUMBER, ResultRecord, Value, is_number, short
from openbench.digest import bytes_sha256
from openbench.errors import RecordError, did_you_mean, listed
from openbench.metrics.keys import Bounds, bounds
from openbench.storage.checksum import KEY as STATED
from openbench.storage.files import creating, delete_old, read_regular
from openbench.storage.plain_json import LARGEST, dumps, loads, plain

_UTC = re.compile(r'"utc": *"([^"]*)"')
LATEST = "latest"
_SHOWN = 8
_LEVELS = 3  # of folders
_PLACE = "records/BENCHMARK/BACKBONE/METHOD/RUN_ID.json"
_PROBE = ".probe."
_UNABLE = "unable"
_ROUNDING = 1e-6

OnError = Callable[[RecordError], None]


def ignore(error: RecordError) -> None:
    """Ignore an error."""


class RecordStore:
    """Records under `<root>/records/<benchmark>/<backbone>/<method>/<run_id>.json`.

    A record appears whole or not at all, and is never replaced: the text goes to a temporary file, is flushed to disk,
    and gets its name by a hard link, which fails if the name is taken.

    Args:
        root: the results folder.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @property
    def folder(self) -> Path:
        """Where the records are."""
        return self.root / "records"

    def path(self, record: ResultRecord) -> Path:
        """Return the file of a record, whether it exists or not.

        Raises:
            RecordError: a name that would be part of the path holds characters that a path must not.
        """
        parts = {f"{key}.name": getattr(record, key).get("name") for key in ("benchmark", "backbone", "method")}
        for key, part in {**parts, "run_id": record.run_id}.items():
            if not (is_page(part) if key == "benchmark.name" else is_part(part)):
                raise RecordError(f"{key} of a record is {part!r}, but becomes part of a path — allowed: {PART}")
        return self.folder.joinpath(*parts.values(), f"{record.run_id}.json")

    def check_writable(self) -> None:
        """Check before a run that its record can be written.

        Raises:
            RecordError: the folder cannot be made or written, or its file system has no hard links.
        """
        probe = self.folder / f"{_PROBE}{secrets.token_hex(6)}"
        try:
            delete_old(self.folder, f"{_PROBE}*")
            with creating(probe):
                pass
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            with suppress(OSError):
                probe.unlink()

    def write(self, record: ResultRecord) -> Path:
        """Write a record with the digest of its content, and return its file.

        Raises:
            RecordError: the record exists, does not fit the schema, or the folder cannot be written.
        """
        path, content = self.path(record), plain(record.to_dict())
        check_numbers(ResultRecord.from_dict(content, f"record {record.run_id}"), f"record {record.run_id}")
        try:
            with creating(path) as stream:
                stream.write(text_of(content).encode())
        except FileExistsError as error:
            raise RecordError(
                f"record {record.run_id} exists in {path} — records are written once; "
                "use runtime.on_existing=skip or runtime.on_existing=verify"
            ) from error
        except OSError as error:
            raise self._unwritable(error) from error
        return path

    def find(self, run_id: str) -> tuple[ResultRecord, Path] | None:
        """Return a record and its file by run id, or None.

        Raises:
            RecordError: the file is there but is not a record.
        """
        places = self.folder.glob(f"[!.]*/[!.]*/[!.]*/{run_id}.json") if is_part(run_id) else ()
        path = min(places, default=None)
        return None if path is None else (self.read(path), path)

    def look_up(self, name: str) -> tuple[ResultRecord, Path]:
        """Return a record and its file by run id, by the beginning of one, or the newest one for `latest`.

        Args:
            name: what the user typed.

        Raises:
            RecordError: no record fits, or several do, or the file is there but is not a record.
        """
        files = self.paths()
        fitting = [path for path in files if path.stem == name] or [
            path for path in files if path.stem.startswith(name)
        ]
        if name == LATEST and files:  # a record may call itself so
            fitting = [max(files, key=_creation_time)]
        if len(fitting) > 1:
            shown = listed((f"{p.stem} ({'/'.join(p.parent.parts[-3:])})" for p in fitting), _SHOWN)
            raise RecordError(f"{len(fitting)} records in '{self.root}' begin with '{name}': {shown} — type more of it")
        if not fitting:
            hint = did_you_mean(name, [path.stem for path in files])
            raise RecordError(
                f"record '{name}' not found in '{self.root}'{hint} — {len(files)} records there; another folder: "
                f"--results DIR; the newest: {LATEST}"
            )
        return self.read(fitting[0]), fitting[0]

    def paths(self, on_error: OnError = ignore) -> list[Path]:
        """Return the files of all records, sorted; temporary files are skipped.

        Args:
            on_error: receives an error for each folder that cannot be read, and for each file in a wrong place.
        """
        return list(_files(self.folder, _LEVELS, on_error))

    def __iter__(self) -> Iterator[ResultRecord]:
        return map(self.read, self.paths())

    def readable(self, on_error: OnError) -> Iterator[ResultRecord]:
        """Yield every record, and call `on_error` for each file that is not a record."""
        return (record for record, _ in self._read(self.paths(on_error), on_error))

    def of_method(
        self, benchmark: str, backbone: str, method: str, on_error: OnError
    ) -> list[tuple[ResultRecord, Path]]:
        """Return the records of a benchmark, backbone and method, and their files.

        Args:
            benchmark: its name.
            backbone: its name.
            method: its name.
            on_error: receives an error for each file that is not a record.
        """
        return list(self._read(_files(self.folder / benchmark / backbone / method, 0, on_error), on_error))

    def _read(self, files: Iterable[Path], on_error: OnError) -> Iterator[tuple[ResultRecord, Path]]:
        for path in files:
            try:
                yield self.read(path), path
            except RecordError as error:
                on_error(error)

    def read(self, path: Path) -> ResultRecord:
        """Return the record in a file, which lies where its names say: a copy elsewhere would count twice.

        Raises:
            RecordError: the file is not a record, or belongs elsewhere.
        """
        record = load(path)
        if (place := self.path(record)) != path:
            raise RecordError(
                f"{path}: the record inside belongs in '{place.parent.relative_to(self.folder)}' — move it there"
            )
        return record

    def __len__(self) -> int:
        return len(self.paths())

    def _unwritable(self, error: OSError) -> RecordError:
        return RecordError(
            f"results folder '{self.root}' cannot be written ({error.strerror or error}) — choose another: "
            "runtime.results=DIR or OPENBENCH_RESULTS"
        )


def load(path: Path) -> ResultRecord:
    """Read one record without trusting anything in it.

    Raises:
        RecordError: unreadable, not strict JSON, not a record of this schema, or under another record's name.
    """
    return _load(path, _text(path))


def packed(path: Path, on_error: OnError) -> Iterator[ResultRecord]:
    """Yield the records of a parquet file that has a row for each, with the columns `path` and `content`.

    Such a file holds the records of a comparison that is not on the leaderboard; no file yields nothing.

    Args:
        path: of the parquet file.
        on_error: receives an error for each row that is not a record.

    Raises:
        RecordError: the file is not parquet, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, columns=["path", "content"]).to_pylist() if path.is_file() else []
    except (OSError, pa.ArrowException) as error:
        raise RecordError(f"{path}: packed records cannot be read ({error}) — restore the file") from error
    for row in rows:
        try:
            yield _load(path / Path(row["path"]).name, row["content"].decode("utf-8", "replace"))
        except RecordError as error:
            on_error(error)


def _load(path: Path, text: str) -> ResultRecord:
    """The record that a text is, in a file of this name."""
    data = loads(text, str(path))
    if not isinstance(data, dict):
        raise RecordError(f"{path}: not a result record but a JSON {type(data).__name__} — an object is expected")
    stated = data.pop(STATED, None)
    record = ResultRecord.from_dict(data, str(path))
    # The line that states the digest is no part of what it is of.
    if stated is not None and bytes_sha256(text.replace(f'\n "{STATED}": "{stated}",\n', "\n", 1).encode()) != stated:
        raise RecordError(f"{path}: the record has changed since it was written — restore the file, or repeat the run")
    check_numbers(record, str(path))
    if stated is None:
        raise RecordError(
            f"{path}: key '{STATED}', the SHA-256 of its content, is missing — restore the file, or repeat the run"
        )
    if record.run_id != path.stem:
        raise RecordError(
            f"{path}: the record inside has run_id {record.run_id!r} — restore it from where it was copied"
        )
    return record


def parsed(path: Path) -> dict[str, Any]:
    """Return what the file of a record says, and the digest that it states; only for files that `load` has accepted.

    Raises:
        RecordError: unreadable, or not strict JSON.
    """
    content: dict[str, Any] = loads(_text(path), str(path))
    return content


def digest_of(record: ResultRecord) -> str:
    """Return the digest of a record's content, as its file states it."""
    return _content_digest(plain(record.to_dict()))


def text_of(content: dict[str, Any]) -> str:
    """Return the text of a record's file: its content, and the digest of that."""
    return dumps({**content, STATED: _content_digest(content)})


def _files(folder: Path, levels: int, on_error: OnError) -> Iterator[Path]:
    """The files of records at a depth below a folder, sorted; hidden ones are skipped."""
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        on_error(RecordError(f"{folder}: the folder cannot be read ({error.strerror}) — repair it, or delete it"))
        return
    for name in names:
        path = folder / name
        if levels and not (name.endswith(".json") and path.is_file()):
            yield from _files(path, levels - 1, on_error)
        elif not levels and name.endswith(".json") and is_part(name):
            yield path
        elif name.endswith(".json"):
            on_error(RecordError(f"{path}: not in the place of a record — move it to {_PLACE}"))


def _text(path: Path) -> str:
    """The text of a record's file."""
    try:
        return read_regular(path, LARGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RecordError(f"{path}: the record cannot be read ({reason}) — restore it or repeat the run") from error


def _creation_time(path: Path) -> tuple[str, int]:
    """When a record was made: its own time and, within one second, its file's; the file is not parsed."""
    times = _UTC.findall(_text(path))
    return (times[-1] if times else ""), path.stat().st_mtime_ns


def _content_digest(content: dict[str, Any]) -> str:
    """The SHA-256 of a record's one spelling on disk, without the line that states it."""
    return bytes_sha256(dumps(content).encode())


def check_numbers(record: ResultRecord, where: str) -> None:
    """Check every metric of a record: its range, and that an interval of AUROC holds its number.

    Raises:
        RecordError: a value that its key cannot have, or an interval that cannot belong to its number; the first one
            is named.
    """
    for name, values in record.metrics.items():
        for key, number in values.items():
            if allowed := _allowed(key, number):
                place = f"metrics.{name}.{key}".encode("unicode_escape").decode()[:60]
                raise RecordError(f"{where}: key '{place}' of the record is {short(number)} — allowed: {allowed}")
        for key in (key.removesuffix("_low") for key in values if key.endswith("_low")):
            if wrong := _wrong_interval(values, key):
                raise RecordError(f"{where}: the interval of '{name}.{key}' in the record is {wrong}")


def _allowed(key: str, number: Value) -> str:
    """What a metric may be instead of a number; empty if it may be that."""
    limits = _limits(key)
    if limits is None:
        return WORDS
    if not is_number(number):
        return f"a finite number up to {LARGEST_NUMBER:g}, or '{_UNABLE}'" * (number != _UNABLE)
    return "" if limits.hold(float(number)) else f"{limits}, or '{_UNABLE}'"


@lru_cache(maxsize=1 << 14)
def _limits(key: str) -> Bounds | None:
    """The values that a metric can have; None for what is no key."""
    return bounds(key) if is_words(key) else None


def _wrong_interval(values: Mapping[str, Value], key: str) -> str:
    """What is wrong with an interval, in words; empty if nothing is.

    An interval of AUROC is built around its number. Others are percentiles of drawn samples, which may lie beside it.
    """
    low, value, high = (values.get(known) for known in (f"{key}_low", key, f"{key}_high"))
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return ""
    if low > high:
        return f"{low:.6g} above {high:.6g} — allowed: the lower end first"
    if key == "auroc" and isinstance(value, float | int) and not low - _ROUNDING <= value <= high + _ROUNDING:
        return f"[{low:.6g}, {high:.6g}] for {value:.6g} — allowed: an interval that holds its number"
    return ""
