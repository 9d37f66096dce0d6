"""Manifests: which image belongs to a set and which class it shows, as short text that expands to one key per image.

Beside them class lists, lists of words, and the pairs of identical images that the published lists are known to have.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from string import Formatter

from openbench import paths
from openbench.core.benchmark import check_distinct
from openbench.data.own.images import own_path, read_rows
from openbench.digest import digest
from openbench.errors import DataError, did_you_mean
from openbench.storage.files import read_regular

UNNAMED = "-"
_SEQUENCE = re.compile(r"labels ([0-9]{1,12})(?: (\S+))?")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_INDEX_FORMAT = re.compile(r"(0?[0-9]{1,2})?d?")
# ImageNet-21K has 14 million; larger sets are given by a rule.
_MOST = 20_000_000
_MOST_BYTES = 2**28
# A path outside the folder in which images are looked for, or not a path at all.
_OUTSIDE = re.compile(r"(?:^|/)\.\.(?:/|$)|^/|^[A-Za-z]:|\\|[\x00-\x1f\x7f]|^$|//|/$")
_OVERLAPS = "known_overlaps.txt"
_SECTION = "# section "


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


def check_pattern(pattern: str, allowed: Iterable[str], where: str) -> None:
    """Check that a pattern of keys has only places that are filled in, and a number's format only digits.

    Raises:
        DataError: another place, or a format that is not a width such as `04d`.
    """
    try:
        pieces = list(Formatter().parse(pattern))
    except ValueError as error:
        raise DataError(f"{where}: the key pattern {pattern!r} — {error} — write e.g. a/{{class}}/{{name}}") from error
    for _, name, form, how in pieces:
        if name is None:
            continue
        fits = name in allowed and not how and (not form or (name == "index" and _INDEX_FORMAT.fullmatch(form)))
        if not fits:
            raise DataError(
                f"{where}: the key pattern {pattern!r} has the place {name + (':' + form if form else '')!r} — "
                f"allowed: {', '.join(allowed)}; a number with a width of at most two digits, such as {{index:04d}}"
            )


def parse(text: str, name: str) -> Manifest:
    """Expand a manifest's text.

    Raises:
        DataError: a line is not an entry, a pattern has no place for images, a range descends, or a key comes twice.
    """
    found: dict[str, str] = {}  # key → class
    for line, pattern, head, body in _entries(text, name):
        where = f"manifest '{name}' line {line}"
        keys, classes = _expand(pattern, head, body, where)
        joined = f"/{'/'.join(keys)}/"
        if not joined.isprintable() or any(part in joined for part in ("//", "..", ":", "\\")):  # else all are fine
            for key in keys:
                check_key(key, where)
        before = len(found)
        found.update(zip(keys, classes, strict=True))
        if len(found) < before + len(keys):
            twice = next(key for key, n in Counter([*list(found)[:before], *keys]).items() if n > 1)
            raise DataError(f"manifest '{name}': '{twice}' is listed more than once — list each image once")
        if len(found) > _MOST:
            raise _too_many(where, len(found))
    return Manifest(name, tuple(found), tuple(found.values()))


def _too_many(where: str, images: int) -> DataError:
    return DataError(f"{where}: {images:,} images — allowed: {_MOST:,} — write larger sets as a rule, NAME.toml")


def _entries(text: str, name: str) -> Iterator[tuple[int, str, str, list[str]]]:
    """Number, pattern, head and the parts of the body of each line; indented lines continue the one above."""
    pattern = ""
    entry: tuple[int, str, str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        where = f"manifest '{name}' line {number}"
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            if entry is None:
                raise DataError(f"{where}: is indented, with no line above to continue — start it with `class:`")
            entry[3].append(line.strip())
            continue
        if entry is not None:
            yield entry
            entry = None
        head, colon, body = line.partition(":")
        if not colon:
            raise DataError(f"{where}: found {line[:60]!r} — `class: images` expected")
        if head == "key":
            pattern = body.strip()
            continue
        if "{index" not in pattern and "{name}" not in pattern:
            raise DataError(
                f"{where}: the key pattern {pattern!r} has no place for images — it needs `{{index}}` (with a format "
                "such as `{index:04d}`) or `{name}`"
            )
        entry = number, pattern, head.strip(), [body.strip()]
    if entry is not None:
        yield entry


def _expand(pattern: str, head: str, body: Sequence[str], where: str) -> tuple[list[str], list[str]]:
    """Key and class of each image of a line."""
    if sequence := _SEQUENCE.fullmatch(head):
        check_pattern(pattern, ("class", "index", "label"), where)
        rows = list(enumerate(_labelled("".join(body), sequence[2], where), int(sequence[1])))
        keys = [pattern.format_map({"index": i, "label": label, "class": name}) for i, (label, name) in rows]
        return keys, [name for _, (_, name) in rows]
    place = "name" if "{name}" in pattern else "index"
    check_pattern(pattern, ("class", place), where)
    tokens = " ".join(body).split()
    images: Iterable[str | int] = tokens if place == "name" else _numbers(tokens, f"{where} ({head})")
    pattern = pattern.replace("{class}", head.replace("{", "{{").replace("}", "}}"))
    keys = [pattern.format_map({place: image}) for image in images]
    return keys, [head] * len(keys)


def _labelled(labels: str, class_list: str | None, where: str) -> Iterator[tuple[str, str]]:
    """Label and class of each character of a sequence."""
    names = load_classes(class_list) if class_list else ()
    for label in labels:
        if names and not (label in "0123456789" and int(label) < len(names)):
            raise DataError(
                f"{where}: label {label!r} — digits below {len(names)} expected, which count the lines of "
                f"'{class_list}'"
            )
        yield label, names[int(label)] if names else label


def _numbers(tokens: Iterable[str], where: str) -> Iterator[int]:
    for token in tokens:
        match = _RANGE.fullmatch(token)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise DataError(f"{where}: found {token!r} — a number, or an ascending range such as 3-7, expected")
        if last - first >= _MOST:
            raise _too_many(where, last - first + 1)
        yield from range(first, last + 1)


@lru_cache(maxsize=1)
def known_pairs() -> frozenset[frozenset[str]]:
    """Return the pairs of keys in `data_manifests/known_overlaps.txt`, one `key = key` a line.

    Raises:
        DataError: a line that is not such a pair.
    """
    pairs = set()
    text = (paths.manifest_dir() / _OVERLAPS).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        first, equals, second = (part.strip() for part in line.partition("="))
        if not (first and equals and second):
            raise DataError(f"{_OVERLAPS} line {number}: found {line!r} — `key = key` expected")
        pairs.add(frozenset((first, second)))
    return frozenset(pairs)


def load_words(name: str, without: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words of a list in its order, each once.

    Args:
        name: a file of data_manifests/words without `.txt`, e.g. `wordnet_nouns`; else a user's text file: absolute, or
            below a data root or the working directory. One word or phrase a line; lines that begin with `#` are
            comments.
        without: sections to leave out; a section begins with a line `# section NAME`.

    Raises:
        DataError: no such list, one that cannot be read or has no words, or a section that it does not have.
    """
    sections = _sections(_place(name))
    unknown = [section for section in without if section not in sections]
    if unknown:
        raise DataError(
            f"word list '{name}' has no section {unknown[0]!r}{did_you_mean(unknown[0], list(sections))} — allowed: "
            f"{', '.join(filter(None, sections)) or 'none: it is not divided'}"
        )
    kept = (words for section, words in sections.items() if section not in without)
    found = tuple(dict.fromkeys(word for words in kept for word in words))
    if not found:
        raise DataError(f"word list '{name}' has no words — at least one is needed — one a line in '{_place(name)}'")
    return found


def _place(name: str) -> Path:
    shipped = paths.manifest_dir() / "words"
    known = {path.stem: path for path in sorted(shipped.glob("*.txt"))}
    if name in known:
        return known[name]
    path = Path(name).expanduser()
    places = [path] if path.is_absolute() else [root / path for root in (*paths.data_roots(), Path.cwd())]
    for place in places:
        if place.is_file():
            return place
    raise DataError(
        f"word list '{name}' not found{did_you_mean(name, list(known))} — looked for {', '.join(map(str, places))} — "
        f"allowed: {', '.join(known)}, or the path of a text file with one word a line"
    )


def _sections(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"": []}
    section = ""
    for line in _text(path, "word list").removeprefix("\ufeff").splitlines():
        if line.startswith(_SECTION):
            section = line.removeprefix(_SECTION).strip()
            found.setdefault(section, [])
        elif line.strip() and not line.startswith("#"):
            found[section].append(line.strip())
    return found
