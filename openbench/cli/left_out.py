"""Messages about records and kept scores that cannot be read."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from openbench.cli.process import BAD_INPUT, OK
from openbench.errors import OpenbenchError
from openbench.results.escape import console

_SHOWN = 20


class LeftOut(list[OpenbenchError]):
    """The reason why each file was left out."""

    @property
    def code(self) -> int:
        """The exit code: 2 if there are any."""
        return BAD_INPUT if self else OK


@contextmanager
def left_out() -> Iterator[LeftOut]:
    """Collect what is left out, and list it at the end, even if the block raises an error."""
    found = LeftOut()
    try:
        yield found
    finally:
        say_left_out(found)


def say_left_out(unreadable: Sequence[OpenbenchError]) -> int:
    """List on stderr what was left out, each with its reason; the exit code is 2 if there is any."""
    for error in unreadable[:_SHOWN]:
        print(console(f"error: {error}"), file=sys.stderr)
    if len(unreadable) > _SHOWN:
        print(f"… and {len(unreadable) - _SHOWN:,} more such errors", file=sys.stderr)
    if unreadable:
        print(f"{len(unreadable):,} files were left out" if unreadable[1:] else "1 file was left out", file=sys.stderr)
    return BAD_INPUT if unreadable else OK
