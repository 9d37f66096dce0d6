"""Lists: the images of a set with their classes, class lists, word lists, and known pairs of equal images.

A list is a CSV file with the columns `path` and `label`: an image's key and its class, `-` where the source names none.
Those of openbench are compressed: `xzcat data_manifests/cifar10/test.csv.xz` prints one, and
`pandas.read_csv(file, comment="#")` reads it. Images come in the order written, so a list's order survives where it
matters. A set that is too large for that has a rule: all images in some folders.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.config.folders import config_folders
from openbench.core.benchmark import check_distinct
from openbench.data.own.images import NO_CLASS, Row, own_path, read_list, read_rows
from openbench.digest import OMIT_IF_DEFAULT, digest
from openbench.errors import DataError, not_found
from openbench.storage.files import read_regular

LIST = ".csv.xz"
_MOST_BYTES = 2**28
_OVERLAPS = "known_overlaps.txt"
_SECTION = "# section "
_WHOLE = (0, 100)


class _Listing:
    classes: tuple[str, ...]

    def class_names(self) -> tuple[str, ...]:
        """The classes that occur, sorted; empty where the source names none."""
        return tuple(sorted(set(self.classes) - {NO_CLASS}))


@dataclass(frozen=True)
class Manifest(_Listing):
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

    @property
    def size(self) -> int:
        """Number of images."""
        return len(self.keys)

    @cached_property
    def digest(self) -> str:
        """Covers keys, classes and order; not comments, ranges or line breaks."""
        return digest({"keys": self.keys, "classes": self.classes})

    def only(self, classes: Iterable[str]) -> "Manifest":
        """The images of some classes, in the same order."""
        chosen = set(classes)
        return self.at([row for row, name in enumerate(self.classes) if name in chosen])

    def at(self, rows: Sequence[int]) -> "Manifest":
        """The images at some positions."""
        return Manifest(self.name, tuple(self.keys[i] for i in rows), tuple(self.classes[i] for i in rows))


@dataclass(frozen=True)
class FolderRule(_Listing):
    """All images, or a fixed number, of each of several folders.

    Args:
        name: the rule's path below the manifest folder, e.g. `imagenet1k/train`.
        key: pattern of the keys with `{folder}` and, as its last part, `{name}`.
        folders: one folder per class.
        classes: the class of each folder.
        suffix: the end of the images' names.
        count: number of images in all folders, or None if it is not known.
        per_class: number of images of each folder: those whose keys have the smallest SHA-256, so that the choice does
            not depend on other files; None for all.
        derived: why the set is not the published one; empty = it is.
        span: percentages from and to which the set reaches in each folder, in the order of the keys' SHA-256: of n
            images those from ⌊n·from/100⌋ to ⌊n·to/100⌋. Sets with disjoint spans share no image.
        counts: number of images in each folder, where they differ and are known; their sum is `count`.
        part_of: the rule for all classes, where this one is for some and its `count` is not known.
    """

    name: str
    key: str
    folders: tuple[str, ...]
    classes: tuple[str, ...]
    suffix: str = ""
    count: int | None = None
    per_class: int | None = None
    derived: str = ""
    span: tuple[int, int] = _WHOLE
    counts: tuple[int, ...] = field(default=(), metadata={OMIT_IF_DEFAULT: True})
    part_of: "FolderRule | None" = field(default=None, metadata={OMIT_IF_DEFAULT: True})

    @property
    def size(self) -> int | None:
        """Number of images; None if it is not known, e.g. for a part of folders that differ in size."""
        if self.count is None or self.span == _WHOLE:
            return self.count
        share, rest = divmod(self.count, len(self.folders))
        counts = self.counts or (() if rest else (share,) * len(self.folders))
        return sum(last - first for first, last in map(self._bounds, counts)) if counts else None

    def only(self, classes: Iterable[str]) -> "FolderRule":
        """The rule for some of the classes."""
        chosen = set(classes)
        rows = [i for i, name in enumerate(self.classes) if name in chosen]
        count = sum(self.counts[i] for i in rows) if self.counts else self._count_of(len(rows))
        return replace(
            self,
            folders=tuple(self.folders[i] for i in rows),
            classes=tuple(self.classes[i] for i in rows),
            count=count,
            counts=tuple(self.counts[i] for i in rows) if self.counts else (),
            part_of=self.part_of or self if count is None else None,
        )

    def expand(self, names_in: Callable[[str], Iterable[str]]) -> tuple[Manifest, int]:
        """Return the manifest of the images in one place, and how many images there should be.

        Where the count is not known, every folder should have at least one image. Of a part of unequal folders, and of
        some of the classes, the images that all folders lack count as missing from the set.

        Args:
            names_in: returns the file names in a folder, e.g. `imagenet_1k/train/n01440764`.

        Raises:
            DataError: there are more images than the rule counts.
        """
        found = [self._keys_in(folder, names_in) for folder in self.folders]
        for folder, images, count in zip(self.folders, found, self.counts, strict=False):
            self._check_count(len(images), count, f"'{folder}'")
        total = sum(map(len, found))
        self._check_count(total, self.count, "its folders")
        parts = [self._part(images) for images in found]
        missing = max(parts.count([]), 0 if self.count is None else self.count - total)
        if self.part_of is not None:
            whole, expected = self.part_of.expand(names_in)
            missing = max(missing, expected - len(whole))
        keys = tuple(key for part in parts for key in part)
        classes = tuple(name for name, part in zip(self.classes, parts, strict=True) for _ in part)
        return Manifest(self.name, keys, classes), self.size or len(keys) + missing

    def _check_count(self, images: int, count: int | None, where: str) -> None:
        if count is not None and images > count:
            raise DataError(f"{self.name}: {images} images ending in '{self.suffix}' in {where}, {count} are published")

    def _keys_in(self, folder: str, names_in: Callable[[str], Iterable[str]]) -> list[str]:
        inside = self.key.rpartition("/")[0].format(folder=folder)
        keys = [f"{inside}/{name}" for name in names_in(inside) if name.endswith(self.suffix)]
        return sorted(keys) if self.per_class is None else sorted(sorted(keys, key=_order)[: self.per_class])

    def _part(self, keys: list[str]) -> list[str]:
        if self.span == _WHOLE:
            return keys
        first, last = self._bounds(len(keys))
        return sorted(sorted(keys, key=_order)[first:last])

    def _bounds(self, images: int) -> tuple[int, int]:
        return images * self.span[0] // 100, images * self.span[1] // 100

    def _count_of(self, folders: int) -> int | None:
        """The number of images in some of the folders; None unless all folders are known to have equally many."""
        if self.per_class is not None:
            return self.per_class * folders
        if self.span == _WHOLE or self.count is None or self.count % len(self.folders):
            return None
        return self.count // len(self.folders) * folders


def _order(key: str) -> bytes:
    """The sort key of the images of a folder: a random order that is the same everywhere."""
    return hashlib.sha256(key.encode()).digest()


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
        raise DataError(not_found(f"manifest '{name}' (a list, .csv, .npz or folder of images)", name, known))
    return _manifest(name, read_rows(path))  # not cached: images may be added between two calls


@lru_cache(maxsize=256)  # more than openbench ships
def _shipped(path: Path, name: str) -> Manifest:
    return _manifest(name, read_list(path))


def _manifest(name: str, rows: Iterable[Row]) -> Manifest:
    keys, classes = zip(*rows, strict=True)
    return Manifest(name, keys, classes)


def load_rule(name: str) -> FolderRule | None:
    """Return the rule `name`, e.g. `imagenet1k/train`, or a part of one, e.g. `rebench/kmnist/train`; None if none.

    The keys of a rule's file are those of `FolderRule`, where `folders` and `classes` name lists, `parts` with the span
    of each part, and `within`: parent folders, where a set has the same folders several times.

    Raises:
        DataError: the rule has other parts.
    """
    for file, part in ((name, ""), name.rpartition("/")[::2]):
        if (paths.manifest_dir() / f"{file}.toml").is_file():
            return _rule(paths.manifest_dir() / f"{file}.toml", name, part)
    return None


@lru_cache(maxsize=16)
def _rule(path: Path, name: str, part: str) -> FolderRule:
    values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    spans, within = values.pop("parts", {"": _WHOLE}), values.pop("within", [])
    if part not in spans:
        raise DataError(not_found(f"part '{part}' of rule '{name}'", part, filter(None, spans)))
    folders, classes = load_classes(values.pop("folders")), load_classes(values.pop("classes"))
    return FolderRule(
        name=name,
        folders=tuple(f"{outer}/{folder}" for outer in within for folder in folders) or folders,
        classes=classes * max(1, len(within)),
        counts=tuple(values.pop("counts", ())),
        span=tuple(spans[part]),
        **values,
    )


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
    known = {file.stem: file for file in sorted((paths.manifest_dir() / "words").glob("*.txt"))}
    places = paths.places(name)
    path = known.get(name) or next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(not_found(f"word list '{name}'", name, known))
    words, sections = dict[str, None](), [""]
    for line in _lines(path, comments=""):
        if line.startswith(_SECTION):
            sections.append(line.removeprefix(_SECTION).strip())
        elif not line.startswith("#") and sections[-1] not in without:
            words[line] = None
    if unknown := [section for section in without if section not in sections]:
        raise DataError(not_found(f"section '{unknown[0]}' of word list '{name}'", unknown[0], sections[1:]))
    if not words:
        raise DataError(f"word list '{name}' has no words — write at least one a line in '{path}'")
    return tuple(words)
