"""Checks of records by recomputation, stored next to the records so that others can read them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock
from pydantic import TypeAdapter, ValidationError

from openbench.digest import digest
from openbench.errors import RecordError
from openbench.storage.files import write_whole

CHECKS = "checks.jsonl"  # a line per record, next to `records`
MadeFrom = Literal["scores", "images"]


@dataclass(frozen=True)
class Check:
    """One repetition of a record.

    Args:
        run_id: of the record.
        record: digest of the record's content then; a record with another content was not checked.
        made_from: `scores`, the published ones, or `images`.
        reproduces: whether the numbers came out again.
        said: the outcome in words.
        made_by: version and commit of openbench that computed them, and when.
        utc: when.
        scores: digest of the published files that it was computed from; empty if from images.
    """

    run_id: str
    record: str
    made_from: MadeFrom
    reproduces: bool
    said: str
    made_by: str
    utc: str
    scores: str = ""

    def of(self, record: str, scores: str = "") -> bool:
        """Whether this is what was checked.

        Args:
            record: digest of the record's content, as its file states it.
            scores: digest of its published scores now; one of others was not checked from these.
        """
        return self.record == record and (self.made_from == "images" or self.scores == scores)


def write_check(results: Path, check: Check) -> Path:
    """Add a check to the file, in place of an earlier one of its record, and return the file.

    Raises:
        RecordError: the folder cannot be written.
    """
    path = results / CHECKS
    try:
        results.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            checks = {**read_checks(results), check.run_id: check}
            write_whole(path, "".join(_line(checks[run_id]) for run_id in sorted(checks)).encode())
    except OSError as error:
        raise RecordError(f"'{path}' cannot be written ({error.strerror or error}) — leave out --keep") from error
    return path


def read_checks(results: Path) -> dict[str, Check]:
    """Return {run id: its check}; a line that is not a check, or has changed since it was written, is skipped."""
    path, checks = results / CHECKS, {}
    for line in path.read_bytes().decode(errors="replace").splitlines() if path.is_file() else ():
        try:
            check = _CHECK.validate_json(line, strict=True)
        except ValidationError:
            continue
        if _line(check) == f"{line}\n":
            checks[check.run_id] = check
    return checks


def _line(check: Check) -> str:
    content = asdict(check)
    return json.dumps({**content, "digest": digest(content, 32)}, ensure_ascii=False) + "\n"


_CHECK = TypeAdapter(Check)
