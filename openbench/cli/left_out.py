"""What is said of files among the records that are none."""

import sys
from collections.abc import Sequence

from openbench.cli.exits import BAD_INPUT, OK
from openbench.errors import RecordError
from openbench.results.escape import console


def say_left_out(unreadable: Sequence[RecordError]) -> int:
    """List on stderr the files that were left out, each with its reason; the exit code is 2 if there are any."""
    for error in unreadable:
        print(console(f"error: {error}"), file=sys.stderr)
    if unreadable:
        several = (
            f"{len(unreadable)} files are not records and were" if unreadable[1:] else "1 file is not a record and was"
        )
        print(f"{several} left out", file=sys.stderr)
    return BAD_INPUT if unreadable else OK
