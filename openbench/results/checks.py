"""What came of computing a record again, kept beside the records so that others can read when it was checked."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from openbench.errors import RecordError
from openbench.results.names import is_part
from openbench.storage.checksum import DamagedError, read_stated, stated
from openbench.storage.files import write_whole

CHECKS = "checks"  # folder beside `records`
MadeFrom = Literal["scores", "images"]


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
            whole = path.read_bytes() == stated(asdict(check))  # also without the digest, which old files may lack
        except (DamagedError, OSError, TypeError):
            continue
        if whole and path.stem == check.run_id and is_part(check.run_id) and _is_sound(check):
            found[check.run_id] = check
    return found


def _is_sound(check: Check) -> bool:
    texts = (check.record, check.said, check.made_by, check.utc, check.scores)
    known = check.made_from in get_args(MadeFrom) and isinstance(check.reproduces, bool)
    return known and all(isinstance(text, str) for text in texts)
