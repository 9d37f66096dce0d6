"""Lists of images: which image belongs to a set, and which class it shows. Lists of classes, words and known pairs.

A list is a CSV file with the columns `path` and `label`: an image's key and its class, `-` where the source names none.
Those of openbench are compressed: `xzcat data_manifests/cifar10/test.csv.xz` prints one, and
`pandas.read_csv(file, comment="#")` reads it. Images come in the order written, so a list's order survives where it
matters. Sets that are too large for that have a rule; see `folder_rule.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from openbench import paths
from openbench.core.benchmark import check_distinct
from openbench.data.own.images import Row, own_path, read_list, read_rows
from openbench.digest import digest
from openbench.errors import DataError, did_you_mean
from openbench.storage.files import read_regular

UNNAMED = "-"
LIST = ".csv.xz"
_MOST_BYTES = 2**28
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
    """Return the list `name`, e.g. `cifar10/test`, or that of the user's own images.

    Args:
        name: a file in `data_manifests` without `.csv.xz`; else a path: of a `.csv` with paths and labels, of an
            `.npz`, or of a folder of images.

    Raises:
        DataError: no such list, or one that cannot be read.
    """
    folder = paths.manifest_dir()
    shipped = folder / f"{name}{LIST}"
    if shipped.is_file():
        return _shipped(shipped, name)
    own = own_path(name)
    if own is None:
        known = sorted(p.relative_to(folder).as_posix().removesuffix(LIST) for p in folder.rglob(f"*{LIST}"))
        raise DataError(
            f"manifest '{name}' not found — looked for {shipped}{did_you_mean(name, known)} — write the name of a list "
            f"in data_manifests without `{LIST}`, or the path of your own: a .csv with the columns path,label, an "
            ".npz, or a folder of images"
        )
    return _manifest(name, read_rows(own))  # not cached: images may be added between two calls


@lru_cache(maxsize=256)  # more than openbench ships
def _shipped(path: Path, name: str) -> Manifest:
    return _manifest(name, read_list(path))


def _manifest(name: str, rows: Iterable[Row]) -> Manifest:
    keys, classes = zip(*rows, strict=True)
    return Manifest(name, keys, classes)


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
