"""Splits and benchmarks: the images of each role; leakage is an error at construction."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.digest import digest
from openbench.errors import DataError, LeakageError

Image = NDArray[Any]  # (h, w, 3) or (h, w) uint8, decoded pixels; in a tabular benchmark a row (d,) float32

# Pairs of ID roles or of OOD roles whose images must differ: training and validation against test.
_APART = {
    Role.ID_TRAIN: (Role.ID_VAL, Role.ID_TEST, Role.CSID),
    Role.ID_VAL: (Role.ID_TRAIN, Role.ID_TEST, Role.CSID),
    Role.OOD_TRAIN: (Role.OOD_VAL, Role.NEAR, Role.FAR),
    Role.OOD_VAL: (Role.OOD_TRAIN, Role.NEAR, Role.FAR),
}


class Items(Protocol):
    """Decoded images in manifest order, read on demand."""

    def __len__(self) -> int:
        """The number of images."""

    def __getitem__(self, index: int) -> Image:
        """Pixels (h, w, 3) or (h, w) uint8 of image `index`, or row `index` (d,) float32 of a table."""


@dataclass(frozen=True, eq=False)
class Split:
    """The images of one data set that play one role.

    Args:
        name: the data set's name in the benchmark, e.g. `tin`; unique within its role.
        role: what the images are for.
        items: decoded images in manifest order.
        labels: (n,) int64 index into the benchmark's ID classes; −1 for OOD roles and in ID splits without labels.
        keys: (n,) the manifest's path of each image, for messages.
        classes: names of the classes that occur (ID: all, in index order); empty where the source has none.
        digest: covers the manifest and a fingerprint of the pixels: equal digests, equal images.
        expected: number of images in the manifest; more than n only if `incomplete=allow` dropped missing ones.
        deviations: how the images differ from the set as defined (missing files, another size); empty = as defined.
        as_stored: the images are published at the size that networks take: the shorter side becomes the crop's side,
            whatever `Preprocess.resize` says, so nothing is cut off.
        identity: stands for this split in the benchmark's digest where only its list of images counts, so that the
            digest is the same with and without the images; empty = `digest` and the number of images.
        unread: whether no part of the run reads the images; there are no rows then.
        source: the object that reads the images, if known; its code shapes them.
    """

    name: str
    role: Role
    items: Items
    labels: NDArray[np.int64]
    keys: Sequence[str]
    classes: tuple[str, ...]
    digest: str
    expected: int
    deviations: tuple[str, ...] = ()
    as_stored: bool = False
    identity: str = ""
    unread: bool = False
    source: object = None

    def __post_init__(self) -> None:
        """Check that the columns belong together and the split is not empty."""
        if not len(self.items) == len(self.labels) == len(self.keys):
            raise DataError(f"split '{self.name}' ({self.role}): items, labels, keys — one of each per image expected")
        if len(self.items) == 0 and not self.unread:
            raise DataError(f"split '{self.name}' ({self.role}) is empty — at least one image is needed, or drop it")

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, eq=False)
class Validation:
    """The splits that tuning can see. Test splits cannot be reached from here."""

    id_val: Split
    ood_val: Split


@dataclass(frozen=True, eq=False)
class Benchmark:
    """ID splits, OOD splits and the promises about them.

    Args:
        name: what users type after `+benchmark=`.
        classes: the ID class names in label order; a single one where there is nothing to classify.
        id_train: training images.
        id_val: held-out ID images for tuning and threshold choice.
        id_test: ID test images.
        near: semantically close OOD test sets by name.
        far: distant OOD test sets by name.
        csid: covariate-shifted ID sets by name.
        ood_val: OOD images for tuning, or None.
        ood_train: outliers for training methods that use them, or None.
        preprocess: how images reach networks trained on this benchmark.
        disjoint: role pairs beyond ID/OOD that must not share classes, e.g. (OOD_VAL, NEAR).
        known_overlap: class names for which the published lists break `disjoint`; not for ID against OOD.
        known_id_overlap: ID class names that the published OOD test lists have too. Part of the OOD images is then ID,
            so a benchmark names such classes only to stay comparable with published results.
        dropped: names of test sets removed by the user; a benchmark with any is not pristine.

    Raises:
        LeakageError: ID and OOD, or two roles named in `disjoint`, share classes that are not listed as known overlap.
        DataError: no ID class, no OOD test set, or a label outside the classes.
    """

    name: str
    classes: tuple[str, ...]
    id_train: Split
    id_val: Split
    id_test: Split
    near: Mapping[str, Split]
    far: Mapping[str, Split]
    preprocess: Preprocess
    csid: Mapping[str, Split] = field(default_factory=dict)
    ood_val: Split | None = None
    ood_train: Split | None = None
    disjoint: tuple[tuple[Role, Role], ...] = ()
    known_overlap: tuple[str, ...] = ()
    known_id_overlap: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse leakage, empty sides and labels without a class."""
        if not self.classes:
            raise DataError(f"benchmark '{self.name}': no ID class — name at least one")
        if not self.near and not self.far:
            raise DataError(f"benchmark '{self.name}': no OOD test set left in near or far — keep at least one")
        for split in self.splits():
            self._check_labels(split)
            if not split.role.is_id:
                self._check_disjoint(f"ID {self.id_test.name}", self._forbidden_in(split), split)
        known = {canonical(name) for name in self.known_overlap}
        for first, second in self.disjoint:
            for a in self.of_role(first):
                classes = [name for name in a.classes if canonical(name) not in known]
                for b in self.of_role(second):
                    self._check_disjoint(f"{a.role} {a.name}", classes, b)

    @property
    def columns(self) -> int | None:
        """The length d of an item where items are vectors; None where they are images."""
        first = self.id_test.items[0]
        return len(first) if first.ndim == 1 else None

    def splits(self) -> Iterator[Split]:
        """Every split of the benchmark."""
        yield from (self.id_train, self.id_val, self.id_test)
        yield from self.csid.values()
        yield from (split for split in (self.ood_train, self.ood_val) if split is not None)
        yield from self.near.values()
        yield from self.far.values()

    def of_role(self, role: Role) -> tuple[Split, ...]:
        """The splits that play `role`."""
        return tuple(split for split in self.splits() if split.role == role)

    def test_splits(self) -> tuple[Split, ...]:
        """The splits scored for the tables: ID test, csID, near, far."""
        return (self.id_test, *self.csid.values(), *self.near.values(), *self.far.values())

    def validation(self) -> Validation:
        """The splits that tuning may see.

        Raises:
            DataError: the benchmark has no OOD validation set.
        """
        if self.ood_val is None:
            raise DataError(
                f"benchmark '{self.name}' has no OOD validation set to tune on — use tune=held_out_classes or "
                "tune=synthetic, or tune=none"
            )
        return Validation(self.id_val, self.ood_val)

    @property
    def deviations(self) -> tuple[str, ...]:
        """Everything by which this differs from the benchmark as defined; empty = pristine."""
        of_splits = (f"{split.name} ({split.role}): {text}" for split in self.splits() for text in split.deviations)
        return (*(f"{name}: dropped" for name in self.dropped), *of_splits)

    @property
    def pristine(self) -> bool:
        """Whether the benchmark is complete and as defined; only then are its records ranked."""
        return not self.deviations

    @property
    def digest(self) -> str:
        """Covers every split and every promise; records with equal digests are comparable."""
        parts: dict[str, Any] = {f"{s.role}/{s.name}": s.identity or (s.digest, len(s)) for s in self.splits()}
        return digest({"classes": self.classes, "splits": parts, "deviations": self.deviations})

    def _forbidden_in(self, ood: Split) -> list[str]:
        """The ID classes that an OOD split must not have; only test sets may have those of `known_id_overlap`."""
        known = {canonical(name) for name in self.known_id_overlap} if ood.role in (Role.NEAR, Role.FAR) else set()
        return [name for name in self.classes if canonical(name) not in known]

    def _check_labels(self, split: Split) -> None:
        if split.unread:
            return
        known = split.role.is_id and split.labels.max() >= 0
        low, high = (0, len(self.classes)) if known else (-1, 0)
        if split.labels.min() < low or split.labels.max() >= high:
            raise DataError(
                f"split '{split.name}' ({split.role}): labels from {split.labels.min()} to {split.labels.max()} — "
                f"allowed: {low} to {high - 1}"
            )

    def _check_disjoint(self, where: str, classes: Iterable[str], other: Split) -> None:
        shared = sorted({canonical(c) for c in classes} & {canonical(c) for c in other.classes})
        if shared:
            raise LeakageError(
                f"benchmark '{self.name}': {where} and {other.role} {other.name} share the classes {shared} — drop them"
            )


@lru_cache(maxsize=2**15)  # the same names are compared again for every pair of sets
def canonical(name: str) -> str:
    """Return a class name in lower case, words joined by single underscores; names are compared in this form."""
    return re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_")


def must_differ(first: Role, second: Role) -> bool:
    """Return whether no image may be in splits of both roles."""
    return first.is_id != second.is_id or second in _APART.get(first, ()) or first in _APART.get(second, ())


def check_distinct(classes: Sequence[str], where: str) -> None:
    """Check that no class is named twice. Names that differ only in case, spaces or punctuation are the same.

    Raises:
        DataError: a class is named twice.
    """
    count = Counter(map(canonical, classes))
    twice = sorted({name for name in classes if count[canonical(name)] > 1 and canonical(name)})
    if twice:
        raise DataError(f"{where}: several classes have the name {', '.join(map(repr, twice[:5]))} — rename them")


@dataclass(frozen=True, eq=False)
class RowItems:
    """Rows of one array, or of several side by side; only the batch that is read is copied.

    Args:
        parts: arrays (N, k) of numbers, or objects that read such rows from a file; an item is a row of the first, then
            of the second, and so on.
        rows: (n,) which rows, in manifest order; None = all.
    """

    parts: tuple[Any, ...]
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.parts[0].shape[0]) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        row: NDArray[np.float32] = self.gather(index, index + 1)[0]
        return row

    def gather(self, start: int, stop: int) -> NDArray[np.float32]:
        """Items [start, stop) as one new array (stop − start, k) float32."""
        index: Any = slice(start, stop)
        if self.rows is not None:
            chosen = self.rows[start:stop]
            consecutive = len(chosen) and bool((np.diff(chosen) == 1).all())
            index = slice(int(chosen[0]), int(chosen[-1]) + 1) if consecutive else chosen
        with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, which is refused
            parts = [np.asarray(part[index]).astype(np.float32) for part in self.parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
