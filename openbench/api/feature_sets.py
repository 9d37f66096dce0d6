"""A benchmark made of arrays of features: every row read once, checked, digested and compared with the other sets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openbench.api.arrays import as_array, as_labels, refuse_not_finite, refuse_sparse
from openbench.backbones.rows import AS_THEY_ARE
from openbench.config.constraints import check_value
from openbench.core.benchmark import Benchmark, RowItems, Split
from openbench.core.request import Role
from openbench.data.checking.verify import must_differ
from openbench.digest import array_sha256, digest, row_digests
from openbench.errors import DataError, LeakageError
from openbench.results.names import WORDS, is_words
from openbench.say import Say

SameRows = Literal["error", "allow"]
_SINGLE = {"train": Role.ID_TRAIN, "id_val": Role.ID_VAL, "id_test": Role.ID_TEST, "ood_val": Role.OOD_VAL}
_GROUPS = {"near": Role.NEAR, "far": Role.FAR, "csid": Role.CSID}
_ONE_CLASS = ("id",)


@dataclass(frozen=True)
class SetOptions:
    """How arrays become a benchmark.

    Args:
        name: of the benchmark.
        classes: names of the ID classes; None = their numbers.
        same_rows: what to do with a row that is on two sides.
        batch: rows that are read at a time.
        say: receives a line for what is converted.
    """

    name: str
    classes: Sequence[str] | None
    same_rows: SameRows
    batch: int
    say: Say

    def columns(self, id_test: Any) -> int:
        """The number of features d."""
        shape = _Rows(_pair(id_test, "id_test")[0], "id_test").shape
        return int(shape[1])


@dataclass(frozen=True)
class _Rows:
    """The rows of one array of any library; each access converts what it returns.

    Args:
        value: numpy's, torch's, JAX's, …; anything with a shape that is sliced by rows.
        where: what it is, for messages.
    """

    value: Any
    where: str

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d).

        Raises:
            DataError: another number of dimensions, or none of one.
        """
        found = getattr(self.value, "shape", None)
        shape = as_array(self.value, self.where).shape if found is None else tuple(int(side) for side in found)
        if len(shape) != 2 or 0 in shape:
            raise DataError(f"{self.where} — found shape {shape} — allowed: (n, d), a row of features for each sample")
        return shape

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return as_array(self.value[index], self.where)


@dataclass
class _Set:
    """One set as it was given, and what its rows are.

    Args:
        name: as results call it.
        role: what it is for.
        rows: its features.
        labels: (n,) classes; None where they are not known.
        hashes: (n, 16) uint8 digest of each row.
        same: how many of its rows are on another side, too.
    """

    name: str
    role: Role
    rows: _Rows
    labels: NDArray[np.int64] | None
    hashes: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 16), np.uint8))
    same: int = 0

    @property
    def where(self) -> str:
        """How messages name it."""
        return self.rows.where

    def split(self, classes: tuple[str, ...], single: bool) -> Split:
        """The set as a split of the benchmark."""
        n, labels = self.rows.shape[0], self.labels
        if labels is None:
            labels = np.full(n, 0 if single and self.role.is_id else -1, dtype=np.int64)
        found = digest({"rows": array_sha256(self.hashes), "columns": self.rows.shape[1], "labels": labels})
        deviations = (f"{self.same} rows are on another side, too",) if self.same else ()
        return Split(
            name=self.name,
            role=self.role,
            items=RowItems((self.rows,)),
            labels=labels,
            keys=_Numbers(n),
            classes=classes if self.role.is_id else (),
            digest=found,
            expected=n,
            deviations=deviations,
        )


@dataclass(frozen=True)
class _Numbers(Sequence[str]):
    """Names of n rows, for messages: `row 17`."""

    rows: int
    start: int = 0

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, _ = index.indices(self.rows)
            return _Numbers(max(0, stop - start), self.start + start)
        if not 0 <= index < self.rows:
            raise IndexError(index)
        return f"row {self.start + index}"


def as_benchmark(
    single: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]], options: SetOptions, c: int | None
) -> tuple[Benchmark, tuple[str, ...]]:
    """Return the benchmark that arrays make up, and what is to be told of them.

    Args:
        single: `train`, `id_val`, `id_test`, `ood_val`: (X, y) or X; those that there are.
        groups: `near`, `far`, `csid`: sets by name.
        options: see there.
        c: the head's classes; None without a head.

    Raises:
        DataError: shapes, labels or values that do not fit.
        LeakageError: a row is on two sides.
    """
    check_value(options.same_rows, SameRows, "same_rows")
    if options.classes is not None and np.asarray(options.classes, dtype=object).ndim != 1:
        raise DataError(f"classes — found a {type(options.classes).__name__} — allowed: the names of the ID classes")
    sets = [*(_given(key, _SINGLE[key], key, value) for key, value in single.items())]
    for group, role in _GROUPS.items():
        sets += [_given(name, role, f"{group} '{name}'", value) for name, value in _by_name(groups[group], group)]
    d = next(s for s in sets if s.role == Role.ID_TEST).rows.shape[1]
    for s in sets:
        if s.rows.shape[1] != d:
            raise DataError(f"{s.where} — found {s.rows.shape[1]} features — id_test has {d} — pass the same features")
    classes = _classes(sets, options.classes, c)
    notes = tuple(note for s in sets if (note := _read(s, options)))
    for note in notes:
        options.say(note)
    notes += _refuse_same_rows(sets, options)
    opened = [s.split(classes, len(classes) == 1) for s in sets]
    by_role = {s.role: s for s in opened}
    missing = {role: _absent(role, classes) for role in (Role.ID_TRAIN, Role.ID_VAL)}
    return Benchmark(
        name=options.name,
        classes=classes,
        id_train=by_role.get(Role.ID_TRAIN, missing[Role.ID_TRAIN]),
        id_val=by_role.get(Role.ID_VAL, missing[Role.ID_VAL]),
        id_test=by_role[Role.ID_TEST],
        near={s.name: s for s in opened if s.role == Role.NEAR},
        far={s.name: s for s in opened if s.role == Role.FAR},
        csid={s.name: s for s in opened if s.role == Role.CSID},
        ood_val=by_role.get(Role.OOD_VAL),
        preprocess=AS_THEY_ARE,
    ), notes


def _pair(value: Any, where: str) -> tuple[Any, Any]:
    """(X, y) of a set; y None where it has no labels."""
    if isinstance(value, tuple):
        if len(value) != 2:
            raise DataError(f"{where} — found {len(value)} values — allowed: (X, y), or X alone")
        return value[0], value[1]
    return value, None


def _given(name: str, role: Role, where: str, value: Any) -> _Set:
    X, y = _pair(value, where)
    refuse_sparse(X, where)
    rows = _Rows(X if hasattr(X, "shape") else as_array(X, where), where)
    labels = None if y is None or not role.is_id else as_labels(y, rows.shape[0], f"{where}: y").numpy()
    return _Set(name, role, rows, labels)


def _by_name(sets: Mapping[str, Any], group: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(sets, Mapping):
        raise DataError(
            f"{group} — found a {type(sets).__name__} — allowed: sets by name — write {group}={{'svhn': X}}"
        )
    for name, value in sets.items():
        if not is_words(name):
            raise DataError(f"{group} — found the set name {name!r} — allowed: {WORDS}")
        yield name, value


def _classes(sets: Sequence[_Set], named: Sequence[str] | None, c: int | None) -> tuple[str, ...]:
    """The names of the ID classes; a single one where no labels are given.

    Raises:
        DataError: labels beyond the classes, or training features without labels where others have some.
    """
    labelled = [s for s in sets if s.labels is not None]
    train = next((s for s in sets if s.role == Role.ID_TRAIN), None)
    count = c or (len(named) if named is not None else 0)
    if not count:
        given = next((s for s in (train, *labelled) if s is not None and s.labels is not None), None)
        count = 1 if given is None else int(given.labels.max()) + 1  # type: ignore[union-attr]
    if train is not None and train.labels is None and count > 1:
        raise DataError(f"train — found X without y — there are {count} classes — pass train=(X, y)")
    for s in labelled:
        if int(s.labels.max()) >= count:  # type: ignore[union-attr]
            of = "the head's classes" if c else "the classes named" if named is not None else "the classes of train"
            raise DataError(
                f"{s.where}: y — found the class {int(s.labels.max())} — allowed: 0 to {count - 1}, {of}"  # type: ignore[union-attr]
            )
    if named is not None and len(named) != count:
        raise DataError(f"classes — found {len(named)} names — {count} are needed, one for each class of the head")
    if named is not None:
        return tuple(str(name) for name in named)
    return _ONE_CLASS if count == 1 else tuple(map(str, range(count)))


def _read(s: _Set, options: SetOptions) -> str:
    """Read a set once: refuse what is not finite, digest each row. Return what is to be told of it."""
    n = s.rows.shape[0]
    items, hashes = RowItems((s.rows,)), np.empty((n, 16), dtype=np.uint8)
    for start in range(0, n, options.batch):
        rows = items.gather(start, min(n, start + options.batch))
        refuse_not_finite(rows, s.where, start)
        hashes[start : start + len(rows)] = row_digests(rows)
    s.hashes = hashes
    kind = s.rows[:1].dtype
    return "" if kind == np.float32 else f"{s.where}: {kind} read as float32"


def _refuse_same_rows(sets: Sequence[_Set], options: SetOptions) -> tuple[str, ...]:
    """Compare sets that must differ by the digests of their rows.

    Returns:
        What is to be told where they are allowed to share rows.

    Raises:
        LeakageError: they share a row.
    """
    keys = {id(s): np.ascontiguousarray(s.hashes).view("S16")[:, 0] for s in sets}
    notes = []
    for first, second in combinations(sets, 2):
        if not must_differ(first.role, second.role):
            continue
        shared = np.flatnonzero(np.isin(keys[id(second)], keys[id(first)]))
        if not len(shared):
            continue
        text = f"{first.where} and {second.where} have {len(shared):,} rows in common"
        if options.same_rows == "error":
            raise LeakageError(
                f"{text}, the first is row {int(shared[0])} of {second.where} — what is learnt or tuned from must not "
                "be tested, and no sample is both ID and OOD — take them out of one set, or pass same_rows='allow', "
                "which is recorded"
            )
        second.same += len(shared)
        notes.append(text)
    return tuple(notes)


def _absent(role: Role, classes: tuple[str, ...]) -> Split:
    """A set that was not given: nothing reads it."""
    return Split(
        str(role),
        role,
        RowItems((np.empty((0, 1), np.float32),)),
        np.empty(0, np.int64),
        (),
        classes,
        "",
        0,
        unread=True,
    )
