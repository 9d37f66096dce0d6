"""What may be a name: as a part of a path, and as a word in a table."""

import re
from functools import lru_cache

INDEX = "README"  # the leaderboard's own page
_LONGEST_PART, _LONGEST = 100, 200
# A part of a path that every file system takes and no tool reads as an option or as a hidden file.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")

PART = "letters, digits, _ . + = -, at most 100 of them, the first a letter, digit or _"
WORDS = "a name on one line, of printable characters, at most 200 of them"


def is_part(text: object) -> bool:
    """Whether something can be the name of a file or folder."""
    return isinstance(text, str) and len(text) <= _LONGEST_PART and _PART.fullmatch(text) is not None


def is_page(text: object) -> bool:
    """Whether something can be the name of a benchmark, which has a page beside the index."""
    return is_part(text) and str(text).casefold() != INDEX.casefold()


def is_words(text: object) -> bool:
    """Whether something can be a name that no path holds, such as a set's."""
    return isinstance(text, str) and _fits(text)


@lru_cache(maxsize=1 << 14)  # records have the same few hundred names a thousand times
def _fits(text: str) -> bool:
    return 0 < len(text) <= _LONGEST and text.isprintable()
