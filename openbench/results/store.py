"""Write-once records on disk: one JSON file per run, named by the run's digest."""

import errno
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from openbench.core.record import ResultRecord
from openbench.digest import bytes_sha256
from openbench.errors import RecordError, did_you_mean
from openbench.results.compare import Comparison, Difference, compare
from openbench.results.names import PART, is_page, is_part
from openbench.results.plain import LARGEST, dumps, loads, plain
from openbench.results.scores import ScoreStore
from openbench.storage.regular import read_regular
from openbench.storage.whole import creating, delete_leftovers

__all__ = ["Comparison", "Difference", "RecordStore", "ScoreStore", "compare"]

_UTC = re.compile(r'"utc": *"([^"]*)"')
LATEST = "latest"
_SHOWN = 8
_PROBE = ".probe."
_DIGEST = "content_sha256"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


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
        parts = {
            "benchmark.name": record.benchmark.get("name"),
            "backbone.name": record.backbone.get("name"),
            "method.name": record.method.get("name"),
            "run_id": record.run_id,
        }
        for key, part in parts.items():
            if not (is_page(part) if key == "benchmark.name" else is_part(part)):
                raise RecordError(f"{key} of a record becomes part of its path — found {part!r} — allowed: {PART}")
        benchmark, backbone, method, run_id = parts.values()
        return self.folder / str(benchmark) / str(backbone) / str(method) / f"{run_id}.json"

    def check_writable(self) -> None:
        """Find out before a run, not after it, whether its record can be written.

        Raises:
            RecordError: the folder cannot be made or written, or its file system has no hard links.
        """
        probe = self.folder / f"{_PROBE}{secrets.token_hex(6)}"
        try:
            delete_leftovers(self.folder, _PROBE)
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
        from openbench.results.schema import check

        path, content = self.path(record), plain(record.to_dict())
        check(content, f"record {record.run_id}")
        text = dumps({**content, _DIGEST: _content_digest(content)})
        try:
            with creating(path) as stream:
                stream.write(text.encode())
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
            RecordError: the file is there but is no record.
        """
        if not is_part(run_id):
            return None
        path = next(iter(sorted(self.folder.glob(f"*/*/*/{run_id}.json"))), None)
        return None if path is None else (load(path), path)

    def look_up(self, name: str) -> tuple[ResultRecord, Path]:
        """Return a record and its file by run id, by the beginning of one, or the newest one for `latest`.

        Raises:
            RecordError: no record fits, or several do, or the file is there but is no record.
        """
        files = self.paths()
        fitting = [path for path in files if path.stem == name] or [p for p in files if p.stem.startswith(name)]
        if name == LATEST and files and not fitting:
            fitting = [max(files, key=_made)]
        if len(fitting) > 1:
            shown = ", ".join(f"{p.stem} ({'/'.join(p.parent.parts[-3:])})" for p in fitting[:_SHOWN])
            more = f" and {len(fitting) - _SHOWN} more" if len(fitting) > _SHOWN else ""
            raise RecordError(
                f"record '{name}' — {len(fitting)} records in '{self.root}' begin so: {shown}{more} — type more of it"
            )
        if not fitting:
            hint = did_you_mean(name, [path.stem for path in files])
            raise RecordError(
                f"record '{name}' not found in '{self.root}'{hint} — {len(files)} records there; another folder: "
                f"--results DIR; the newest: {LATEST}"
            )
        return load(fitting[0]), fitting[0]

    def paths(self) -> list[Path]:
        """Return the files of all records, sorted; what killed writers left behind is not among them."""
        return sorted(path for path in self.folder.glob("*/*/*/*.json") if is_part(path.name))

    def __iter__(self) -> Iterator[ResultRecord]:
        for path in self.paths():
            yield load(path)

    def readable(self, on_error: Callable[[RecordError], None]) -> Iterator[ResultRecord]:
        """Yield every record, and call `on_error` for each file that is none."""
        for path in self.paths():
            try:
                yield load(path)
            except RecordError as error:
                on_error(error)

    def __len__(self) -> int:
        return len(self.paths())

    def _unwritable(self, error: OSError) -> RecordError:
        reason = error.strerror or str(error)
        if error.errno in _NO_LINKS and error.filename2 is not None:
            reason = f"its file system has no hard links, which keep a record from being overwritten ({reason})"
        return RecordError(
            f"results folder '{self.root}' cannot be written — {reason} — choose another: runtime.results=DIR "
            "or OPENBENCH_RESULTS"
        )


def load(path: Path) -> ResultRecord:
    """Read one record, of which nothing is trusted.

    Raises:
        RecordError: unreadable, not strict JSON, not a record of this schema, or under another record's name.
    """
    from openbench.results.schema import check

    text = _text(path)
    data = loads(text, str(path))
    if not isinstance(data, dict):
        raise RecordError(f"{path}: not a result record — found a JSON {type(data).__name__} — an object expected")
    stated = data.pop(_DIGEST, None)
    record = ResultRecord.from_dict(data, str(path))
    if stated is not None and not _states(text, data, stated):
        raise RecordError(
            f"{path}: the record has changed since it was written — its content does not have the SHA-256 that it "
            "states — restore the file, or delete it and repeat the run"
        )
    check(data, str(path))
    if record.run_id != path.stem:
        raise RecordError(
            f"{path}: the record inside has run_id {record.run_id!r} — a record's file has its run_id as name; "
            "restore the file from where it was copied"
        )
    return record


def _text(path: Path) -> str:
    """The text of a record's file."""
    try:
        return read_regular(path, LARGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RecordError(f"{path}: the record cannot be read — {reason} — restore it or repeat the run") from error


def _states(text: str, content: dict[str, Any], stated: object) -> bool:
    """Whether a record's text states the digest of its content.

    Args:
        text: the whole file.
        content: what it says, without the digest.
        stated: the digest.
    """
    line = f'\n "{_DIGEST}": "{stated}",\n'
    if bytes_sha256(text.replace(line, "\n", 1).encode()) == stated:
        return True
    try:  # its content may be as it was, written otherwise
        return _content_digest(content) == stated
    except RecursionError:
        return False


def _made(path: Path) -> tuple[str, int]:
    """When a record was made, by its own word and, of one second, by its file's time; whole files are not parsed."""
    try:
        found = _UTC.findall(_text(path))
        return (found[-1] if found else ""), path.stat().st_mtime_ns
    except (OSError, RecordError):
        return "", 0  # any that can be read is newer


def _content_digest(content: dict[str, Any]) -> str:
    """The SHA-256 of a record's one spelling on disk, without the line that states it."""
    return bytes_sha256(dumps(content).encode())
