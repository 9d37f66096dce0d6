"""Manifests: which image belongs to a set and which class it shows, as short text that expands to one key per image.

A manifest consists of sections. A section opens with the pattern of its keys; every further line names a class and the
images of that class. An indented line continues the line above it::

    # Comments and empty lines are skipped.
    key: cifar10/test/{class}/{index:04d}.png
    airplane: 1 3-7 12
    automobile: 2 4
    key: mnist/train/{class}_{index}.jpg
    labels 0: 5041921314
    key: ninco/{class}/{name}
    cloud: cloud_001.jpg cloud_007.jpg

Where the pattern holds `{index…}`, images are numbers and ascending ranges (`3-7` is 3, 4, 5, 6, 7); where it holds
`{name}`, they are names. `labels START:` numbers images from START on and gives each a one-character class;
`labels START LIST:` does so with digits that count lines of a class list, and `{label}` in the pattern is the digit.
The class `-` means that the source names none. Images come in the order written, so a list's order survives where it
matters.
"""

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, repeat
from pathlib import Path

from openbench import paths
from openbench.core.benchmark import check_distinct
from openbench.data.manifests.pattern import Entry, check_pattern, filled, keys_of
from openbench.data.own.listing import own_path, read_rows
from openbench.digest import digest
from openbench.errors import DataError, did_you_mean
from openbench.storage.files import read_regular

UNNAMED = "-"
_WIDTH = 116
_DIGITS = "0123456789"
_SEQUENCE = re.compile(r"labels ([0-9]{1,12})(?: (\S+))?")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
# ImageNet-21K has 14 million; larger sets are given by a rule.
_MOST = 20_000_000
_MOST_CHARACTERS = 2**30  # of all keys
_MOST_BYTES = 2**28  # of a manifest
_AT_ONCE = 4096  # keys that are checked together
# A path outside the folder in which images are looked for, or not a path at all.
_OUTSIDE = re.compile(r"(?:^|/)\.\.(?:/|$)|^/|^[A-Za-z]:|\\|[\x00-\x1f\x7f]|^$|//|/$")


@dataclass(frozen=True)
class Manifest:
    """One key and one class name per image, in order.

    Args:
        name: the manifest's path below the manifest folder, e.g. `cifar10/test`.
        keys: slash-separated path of each image as the benchmark's lists write it.
        classes: class name of each image; `-` where the source names none.
    """

    name: str
    keys: tuple[str, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def digest(self) -> str:
        """Covers keys, classes and order; not comments, ranges or line breaks."""
        return digest({"keys": self.keys, "classes": self.classes})

    def only(self, classes: Iterable[str]) -> "Manifest":
        """The images of some classes, in the same order."""
        wanted = set(classes)
        kept = [(key, name) for key, name in zip(self.keys, self.classes, strict=True) if name in wanted]
        return Manifest(self.name, tuple(key for key, _ in kept), tuple(name for _, name in kept))

    def class_names(self) -> tuple[str, ...]:
        """The classes that occur, sorted; empty where the source names none."""
        return tuple(sorted(set(self.classes) - {UNNAMED}))


def load_manifest(name: str) -> Manifest:
    """Return the manifest `name`, e.g. `cifar10/test`, or that of the user's own images.

    Args:
        name: a file in `data_manifests` without `.txt`; else a path: of a `.txt` file in this format, of a `.csv` with
            paths and labels, of an `.npz`, or of a folder of images.

    Raises:
        DataError: no such manifest, or one that cannot be read.
    """
    if not name.endswith(".txt") and not (paths.manifest_dir() / f"{name}.txt").is_file():
        own = own_path(name)
        if own is not None:
            # Not kept: images may be added between two calls.
            rows = read_rows(own)
            return Manifest(name, tuple(key for key, _ in rows), tuple(label for _, label in rows))
    folder = paths.manifest_dir()
    path = Path(name).expanduser() if name.endswith(".txt") else folder / f"{name}.txt"
    if not path.is_file():
        known = sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.txt"))
        raise DataError(
            f"manifest '{name}' not found — looked for {path}{did_you_mean(name, known)} — "
            "write the name of a file in data_manifests without `.txt`, or the path of your own: a .txt manifest, a "
            ".csv, an .npz, or a folder of images"
        )
    return _parsed(_text(path, f"manifest '{name}'"), name)


@lru_cache(maxsize=256)  # more than openbench ships, a million images in all: a tenth of a second for each parsed again
def _parsed(text: str, name: str) -> Manifest:
    """What a text says, kept as long as the file has it."""
    return parse(text, name)


def load_classes(name: str) -> tuple[str, ...]:
    """Return the class names of a class list such as `cifar10/classes`: one a line, in label order.

    Raises:
        DataError: no such list, or one that names a class twice.
    """
    path = paths.manifest_dir() / f"{name}.txt"
    if not path.is_file():
        raise DataError(f"class list '{name}' not found — looked for {path} — one class name a line, in label order")
    lines = (line.strip() for line in _text(path, f"class list '{name}'").splitlines())
    found = tuple(line for line in lines if line and not line.startswith("#"))
    check_distinct(found, f"class list '{name}'")
    return found


def _text(path: Path, what: str) -> str:
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: '{path}' cannot be read — {error} — text in UTF-8 expected") from error


def check_key(key: str, where: str) -> None:
    """Check that a key is a path below the folder in which images are looked for.

    Raises:
        DataError: it is absolute, has `..`, a backslash or a control character, or an empty part.
    """
    if _OUTSIDE.search(key):
        raise DataError(
            f"{where}: the key {key!r} leaves the data folder or is not a plain path — a relative path with slashes, "
            "without `..` or control characters expected"
        )


def parse(text: str, name: str) -> Manifest:
    """Expand a manifest's text.

    Raises:
        DataError: a line is not an entry, a pattern has no place for images, a range descends, or a key comes twice.
    """
    found: dict[str, str] = {}  # key → class
    characters = 0
    for entry in _entries(text, name):
        where = f"manifest '{name}' line {entry.line}"
        for keys, classes in _expand(entry, name):
            if not _are_plain(keys) or len(set(keys)) < len(keys) or not found.keys().isdisjoint(keys):
                _check_each(keys, found, name, where)
            found.update(zip(keys, classes, strict=True))
            characters += sum(map(len, keys))
            if len(found) > _MOST or characters > _MOST_CHARACTERS:
                raise DataError(
                    f"{where}: more than {_MOST:,} images, or {_MOST_CHARACTERS:,} characters of their keys — write "
                    "larger sets as a rule, NAME.toml"
                )
    return Manifest(name, tuple(found), tuple(found.values()))


def _are_plain(keys: Sequence[str]) -> bool:
    """Whether `check_key` passes all of these; a few that it would pass too are not plain."""
    text = f"/{'/'.join(keys)}/"  # a slash at either end of a key, and an empty key, give two in a row
    return text.isprintable() and not any(part in text for part in ("//", "..", ":", "\\"))


def _check_each(keys: Sequence[str], found: Container[str], name: str, where: str) -> None:
    """Check keys one by one, the way to say which is wrong.

    Raises:
        DataError: a key is outside the data folder, or comes twice.
    """
    seen = set[str]()
    for key in keys:
        check_key(key, where)
        if key in found or key in seen:
            raise DataError(f"manifest '{name}': '{key}' is listed more than once — list each image once")
        seen.add(key)


def compact(indices: Sequence[int]) -> str:
    """Return numbers as a manifest writes them: ascending runs of three or more become ranges; the order is kept."""
    parts: list[str] = []
    start = 0
    while start < len(indices):
        stop = start + 1
        while stop < len(indices) and indices[stop] == indices[stop - 1] + 1:
            stop += 1
        run = indices[start:stop]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(i) for i in run]
        start = stop
    return " ".join(parts)


def write_section(pattern: str, entries: Iterable[tuple[str, str]]) -> str:
    """Return the text of one section.

    Args:
        pattern: the pattern of its keys.
        entries: head (a class, or `labels START`) and body of each line, the body as `compact` returns it.
    """
    lines = [f"key: {pattern}"]
    for head, body in entries:
        lines += _wrap(f"{head}: {body}", unbroken=_SEQUENCE.fullmatch(head) is not None)
    return "\n".join(lines) + "\n"


def _wrap(text: str, unbroken: bool) -> list[str]:
    if unbroken:
        pieces = [text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)]
    else:
        pieces = [piece.strip() for piece in re.findall(rf".{{1,{_WIDTH}}}(?:\s+|$)|\S+\s*", text)]
    return [pieces[0], *(f"  {piece}" for piece in pieces[1:])]


def _entries(text: str, name: str) -> Iterator[Entry]:
    pattern = ""
    pending: Entry | None = None
    bodies: list[str] = []  # of its lines
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            if pending is None:
                raise DataError(
                    f"manifest '{name}' line {number}: is indented, with no line above to continue — "
                    "start it with `class:`"
                )
            bodies.append(line.strip())
            continue
        if pending is not None:
            yield _joined(pending, bodies)
            pending = None
        head, colon, body = line.partition(":")
        if re.match(r"labels\s+[0-9]{13}", head):
            raise DataError(f"manifest '{name}' line {number}: found {line[:40]!r} — labels start at 12 digits at most")
        if not colon:
            raise DataError(f"manifest '{name}' line {number}: found {line[:60]!r} — `class: images` expected")
        if head == "key":
            pattern = body.strip()
            continue
        if "{index" not in pattern and "{name}" not in pattern:
            raise DataError(
                f"manifest '{name}' line {number}: the key pattern {pattern!r} has no place for images — "
                "it needs `{index}` (with a format such as `{index:04d}`) or `{name}`"
            )
        pending, bodies = Entry(pattern, head.strip(), "", number), [body.strip()]
    if pending is not None:
        yield _joined(pending, bodies)


def _joined(entry: Entry, bodies: list[str]) -> Entry:
    joint = "" if _SEQUENCE.fullmatch(entry.head) else " "
    return Entry(entry.pattern, entry.head, joint.join(bodies), entry.line)


def _expand(entry: Entry, name: str) -> Iterator[tuple[list[str], Iterable[str]]]:
    """Keys, and the class of each: thousands at once, and never all of a long range."""
    where, tokens = f"manifest '{name}' line {entry.line}", entry.body.split()
    images: Iterator[str | int]
    if sequence := _SEQUENCE.fullmatch(entry.head):
        check_pattern(entry.pattern, ("class", "index", "label"), where)
        labelled = _labelled(entry, name, int(sequence[1]), sequence[2] or "")
        while part := list(islice(labelled, _AT_ONCE)):
            yield [key for _, key in part], (class_name for class_name, _ in part)
        return
    if "{name}" in entry.pattern:
        place, images = "name", iter(tokens)
    else:
        place, images = "index", _numbers(tokens, entry, name)
    check_pattern(entry.pattern, ("class", place), where)
    while some := list(islice(images, _AT_ONCE)):
        yield keys_of(entry, name, place, some), repeat(entry.head, len(some))


def _labelled(entry: Entry, name: str, start: int, class_list: str) -> Iterator[tuple[str, str]]:
    """Class and key of each character of a sequence."""
    names = load_classes(class_list) if class_list else ()
    for index, label in enumerate(entry.body, start):
        if names and not (label in _DIGITS and int(label) < len(names)):
            raise DataError(
                f"manifest '{name}' line {entry.line}: label {label!r} — digits below {len(names)} expected, which "
                f"count the lines of '{class_list}'"
            )
        class_name = names[int(label)] if names else label
        yield (
            class_name,
            filled(entry, name, len(class_name), {"index": index, "label": label, "class": class_name}),
        )


def _numbers(tokens: Iterable[str], entry: Entry, name: str) -> Iterator[int]:
    for token in tokens:
        if len(token) <= 12 and token.isdigit() and token.isascii():
            yield int(token)
        else:
            yield from _range(token, entry, name)


def _range(token: str, entry: Entry, name: str) -> range:
    match = _RANGE.fullmatch(token)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise DataError(
            f"manifest '{name}' line {entry.line} ({entry.head}): found {token!r} — a number, or an ascending range "
            "such as 3-7, expected"
        )
    if last - first >= _MOST:
        raise DataError(
            f"manifest '{name}' line {entry.line} ({entry.head}): {token!r} are {last - first + 1:,} images — allowed: "
            f"{_MOST:,} — write larger sets as a rule, NAME.toml"
        )
    return range(first, last + 1)
