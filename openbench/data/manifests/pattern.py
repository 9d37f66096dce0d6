"""The patterns that keys are made of: what may stand in them, and the keys of the images of one line of a manifest."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from string import Formatter

from openbench.errors import DataError

_LONGEST = 4096  # characters of a key, which is the path of a file
_WIDEST = 99  # characters of a number
_INDEX_FORMAT = re.compile(r"(0?[0-9]{1,2})?d?")


@dataclass(frozen=True)
class Entry:
    """One line of a manifest: a class and its images, or a sequence of one-character classes.

    Args:
        pattern: the pattern of the section.
        head: the class, or `labels START` with an optional class list.
        body: the images as written.
        line: line number, for messages.
    """

    pattern: str
    head: str
    body: str
    line: int

    @cached_property
    def places(self) -> int:
        """Of the pattern, those that are filled in; a few more where it has braces of its own."""
        return self.pattern.count("{")


def check_pattern(pattern: str, allowed: Iterable[str], where: str) -> None:
    """Check that a pattern of keys has only places that are filled in, and a number's format only digits.

    Raises:
        DataError: another place, or a format that is not a width such as `04d`.
    """
    try:
        places = [(name, form or "", how) for _, name, form, how in _pieces(pattern) if name is not None]
    except ValueError as error:
        raise DataError(f"{where}: the key pattern {pattern!r} — {error} — write e.g. a/{{class}}/{{name}}") from error
    for name, form, how in places:
        if name not in allowed or how or (form and (name != "index" or not _INDEX_FORMAT.fullmatch(form))):
            raise DataError(
                f"{where}: the key pattern {pattern!r} has the place {name + (form and ':' + form)!r} — allowed: "
                f"{', '.join(allowed)}; a number with a width of at most two digits, such as {{index:04d}}"
            )


@lru_cache(maxsize=256)  # a section has one pattern, and often hundreds of lines
def _pieces(pattern: str) -> tuple[tuple[str, str | None, str | None, str | None], ...]:
    return tuple(Formatter().parse(pattern))


def keys_of(entry: Entry, name: str, place: str, images: Sequence[str | int]) -> list[str]:
    """The keys of images of one class: what differs is put between what does not, where the pattern has it once."""
    longest = max(_WIDEST, len(entry.head), max(map(len, map(str, images))))
    around = _around(entry.pattern)
    if around is None or len(entry.pattern) + entry.places * longest > _LONGEST:
        values = {"class": entry.head}
        return [
            filled(entry, name, max(len(entry.head), len(str(image))), {**values, place: image}) for image in images
        ]
    before, form, after = entry.head.join(around[0]), around[1], entry.head.join(around[2])
    return (
        [f"{before}{image:{form}}{after}" for image in images]
        if form
        else [f"{before}{image}{after}" for image in images]
    )


@lru_cache(maxsize=256)
def _around(pattern: str) -> tuple[list[str], str, list[str]] | None:
    """What is before the place of an image, the format there, and what is after; both cut where the class goes.

    None if there is not one such place.
    """
    sides, forms = [[""]], []
    for text, place, form, _ in _pieces(pattern):
        sides[-1][-1] += text
        if place == "class":
            sides[-1].append("")
        elif place is not None:
            forms.append(form or "")
            sides.append([""])
    return (sides[0], forms[0], sides[1]) if len(forms) == 1 else None


def filled(entry: Entry, name: str, longest: int, values: Mapping[str, str | int]) -> str:
    """Return a key; its length is checked before it is built, since places may occur many times."""
    most = len(entry.pattern) + entry.places * longest
    key = "" if most > 100 * _LONGEST else entry.pattern.format_map(values)
    if most > 100 * _LONGEST or len(key) > _LONGEST:
        raise DataError(
            f"manifest '{name}' line {entry.line}: found a key of more than {_LONGEST:,} characters — it is "
            "the path of a file — shorten the key pattern, the class or the name"
        )
    return key
