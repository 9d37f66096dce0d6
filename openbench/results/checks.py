"""What came of computing a record again, kept beside the records so that others can read when it was checked."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from openbench.core.record import ResultRecord
from openbench.errors import RecordError
from openbench.results.names import is_part
from openbench.results.records.store import digest_of
from openbench.storage.sealed import DamagedError
from openbench.storage.stated import read_stated, stated
from openbench.storage.whole import write_whole

CHECKS = "checks"  # folder beside `records`


@dataclass(frozen=True)
class Check:
    """One repetition of a record.

    Args:
        run_id: of the record.
        record: digest of the record's content then; a record with another content was not checked.
        made_from: `scores`, the published ones, or `images`.
        reproduces: whether the numbers came out again.
        said: how many did, in words.
        made_by: version and commit of openbench that computed them, and when.
        utc: when.
    """

    run_id: str
    record: str
    made_from: Literal["scores", "images"]
    reproduces: bool
    said: str
    made_by: str
    utc: str

    def of(self, record: ResultRecord) -> bool:
        """Whether this is what was checked."""
        return self.run_id == record.run_id and self.record == digest_of(record)


def write_check(results: Path, check: Check) -> Path:
    """Write a check beside the records, in place of an earlier one, and return its file.

    Raises:
        RecordError: the folder cannot be written.
    """
    path = results / CHECKS / f"{check.run_id}.json"
    try:
        write_whole(path, stated(asdict(check)))
    except OSError as error:
        raise RecordError(f"'{path}' cannot be written — {error.strerror or error} — leave out --keep") from error
    return path


def read_checks(results: Path) -> Mapping[str, Check]:
    """Return {run id: its check}; a file that is not one, or has changed since it was written, tells nothing."""
    found = {}
    for path in sorted((results / CHECKS).glob("*.json")):
        try:
            check = Check(**read_stated(path))
        except (DamagedError, FileNotFoundError, TypeError):
            continue
        texts = (check.run_id, check.record, check.said, check.made_by, check.utc)
        if path.stem == check.run_id and is_part(check.run_id) and all(isinstance(text, str) for text in texts):
            found[check.run_id] = check
    return found
