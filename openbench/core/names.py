"""What may be a name: as a part of a path, and as a word in a table."""

import re
from collections.abc import Iterable

INDEX = "README"  # the leaderboard's own page
_LONGEST_PART, _LONGEST = 100, 200
# A part of a path that every file system takes and no tool reads as an option or as a hidden file.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")

PART = "letters, digits, _ . + = -, at most 100 of them, the first a letter, digit or _"
WORDS = "a name on one line, of printable characters, at most 200 of them"

FULL_SPECTRUM, ATTACKED = "full_spectrum/", "attacked/"  # before names in metrics: ID test ∪ csID; attacked images
_ORDER = re.compile(r"order_\d+/")


def order_name(number: int, name: str) -> str:
    """Return the name of a set or group in one order of its stream, as the metrics of a record have it."""
    return f"order_{number}/{name}"


def without_order(name: str) -> str:
    """Return the name of a set or group as it is without the order of a stream."""
    return _ORDER.sub("", name, count=1)


def without_side(name: str) -> str:
    """Return the name of a set or group as it is in the standard setting."""
    return name.removeprefix(FULL_SPECTRUM).removeprefix(ATTACKED)


def is_stream(measured: Iterable[str]) -> bool:
    """Whether numbers are of streams, so that they depend on the order of the images.

    Args:
        measured: names of sets and groups as the metrics of a record have them.
    """
    return any(_ORDER.match(name) for name in measured)


def is_part(text: object) -> bool:
    """Whether something can be the name of a file or folder."""
    return isinstance(text, str) and len(text) <= _LONGEST_PART and _PART.fullmatch(text) is not None


def is_page(text: object) -> bool:
    """Whether something can be the name of a benchmark, which has a page beside the index."""
    return is_part(text) and str(text).casefold() != INDEX.casefold()


def is_words(text: object) -> bool:
    """Whether something can be a name that no path holds, such as a set's."""
    return isinstance(text, str) and 0 < len(text) <= _LONGEST and text.isprintable()
