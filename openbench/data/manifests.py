"""Lists: the images of a set with their classes, class lists, word lists, and known pairs of equal images.

A list is a CSV file with the columns `path` and `label`: an image's key and its class, `-` where the source names none.
Those of openbench are compressed: `xzcat data_manifests/cifar10/test.csv.xz` prints one, and
`pandas.read_csv(file, comment="#")` reads it. Images come in the order written, so a list's order survives where it
matters. Sets that are too large for that have a rule; see `folder_rule.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from openbench import paths
from openbench.config.folders import config_folders
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
        chosen = set(classes)
        rows = [row for row in zip(self.keys, self.classes, strict=True) if row[1] in chosen]
        return Manifest(self.name, tuple(key for key, _ in rows), tuple(name for _, name in rows))

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
    path = own_path(name)
    if path is None:
        known = sorted(p.relative_to(folder).as_posix().removesuffix(LIST) for p in folder.rglob(f"*{LIST}"))
        raise DataError(
            f"manifest '{name}' not found in {folder}{did_you_mean(name, known)} — name a list there without `{LIST}`, "
            "or your own: a .csv with the columns path,label, an .npz, or a folder of images"
        )
    return _manifest(name, read_rows(path))  # not cached: images may be added between two calls


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
    ours = paths.manifest_dir() / f"{name}.txt"
    files = [ours, *(place.path / f"{name}.txt" for place in config_folders()[1:])]  # of packages
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise DataError(f"class list '{name}' not found — write {ours}, one class name a line, in label order")
    classes = tuple(_lines(path))
    check_distinct(classes, f"class list '{name}'")
    return classes


def _lines(path: Path, comments: str = "#") -> Iterator[str]:
    """The lines of a text file, without empty ones and comments."""
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"'{path}' cannot be read ({error}) — write it as text in UTF-8") from error
    stripped = (line.strip() for line in text.splitlines())
    return (line for line in stripped if line and not (comments and line.startswith(comments)))


@lru_cache(maxsize=1)
def known_pairs() -> frozenset[frozenset[str]]:
    """Return the pairs of keys in `data_manifests/known_overlaps.txt`, one `key = key` a line.

    Raises:
        DataError: a line that is not such a pair.
    """
    pairs = set()
    for line in _lines(paths.manifest_dir() / _OVERLAPS):
        first, equals, second = (part.strip() for part in line.partition("="))
        if not (first and equals and second):
            raise DataError(f"{_OVERLAPS}: the line {line!r} is not `key = key`")
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
        DataError: no such list, one that cannot be read or has no words, or an unknown section.
    """
    path = _word_file(name)
    sections: dict[str, list[str]] = {"": []}
    section = ""
    for line in _lines(path, comments=""):
        if line.startswith(_SECTION):
            section = line.removeprefix(_SECTION).strip()
            sections.setdefault(section, [])
        elif not line.startswith("#"):
            sections[section].append(line)
    if unknown := [section for section in without if section not in sections]:
        raise DataError(
            f"word list '{name}' has no section {unknown[0]!r}{did_you_mean(unknown[0], list(sections))} — choose from "
            f"{', '.join(filter(None, sections)) or 'none: it is not divided'}"
        )
    chosen = (words for section, words in sections.items() if section not in without)
    words = tuple(dict.fromkeys(word for words in chosen for word in words))
    if not words:
        raise DataError(f"word list '{name}' has no words — write at least one a line in '{path}'")
    return words


def _word_file(name: str) -> Path:
    known = {path.stem: path for path in sorted((paths.manifest_dir() / "words").glob("*.txt"))}
    places = paths.places(name)
    file = known.get(name) or next((place for place in places if place.is_file()), None)
    if file is None:
        raise DataError(
            f"word list '{name}' not found{did_you_mean(name, list(known))} in {', '.join(map(str, places))} — "
            f"choose from {', '.join(known)}, or name a text file with one word a line"
        )
    return file
