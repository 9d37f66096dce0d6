"""Identical images that the published lists have on two sides: known, listed, and still reported."""

from functools import lru_cache

from openbench import paths
from openbench.errors import DataError

_FILE = "known_overlaps.txt"


@lru_cache(maxsize=1)
def known_pairs() -> frozenset[frozenset[str]]:
    """Return the pairs of keys in `data_manifests/known_overlaps.txt`, one `key = key` a line.

    Raises:
        DataError: a line that is not such a pair.
    """
    pairs = set()
    text = (paths.manifest_dir() / _FILE).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        first, equals, second = (part.strip() for part in line.partition("="))
        if not (first and equals and second):
            raise DataError(f"{_FILE} line {number}: found {line!r} — `key = key` expected")
        pairs.add(frozenset((first, second)))
    return frozenset(pairs)
