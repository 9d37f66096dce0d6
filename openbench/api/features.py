"""Methods on features that the caller has already: arrays in, results out; nothing of their size is kept in memory."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.api.arguments import (
    ArrayLike,
    as_array,
    as_head,
    class_indices,
    metric_options,
    named_sets,
    path_of,
    plain,
    refuse_not_finite,
    refuse_sparse,
)
from openbench.api.methods import chosen_method, named_methods
from openbench.api.result import Result, Results
from openbench.backbones.device import resolve_device
from openbench.backbones.rows import AS_THEY_ARE, Rows
from openbench.config.constraints import Seed, check_value
from openbench.config.overrides import NAME
from openbench.core.benchmark import Benchmark, RowItems, Split
from openbench.core.composite import Composite, leaves
from openbench.core.names import PART, is_part
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.core.scores import SetScores
from openbench.core.search import ChosenMethod, with_params
from openbench.data.checking.verify import must_differ
from openbench.digest import array_sha256, digest, row_digests
from openbench.engine.compatibility import check_classes
from openbench.engine.evaluate import for_layers
from openbench.engine.run import RunSpec, compute, run
from openbench.engine.tune import Tuning
from openbench.errors import CacheError, ConfigError, DataError, LeakageError, NotApplicableError
from openbench.metrics.suite import MetricOptions
from openbench.results.scores.stored import ScoreStore
from openbench.storage.files import delete_old

logger = logging.getLogger(__name__)

Tune = Literal["validation", "none"]
Labelled = ArrayLike | tuple[ArrayLike, ArrayLike]
Sets = Mapping[str, Labelled]
_BATCH = 4096  # rows that are read, checked and converted at a time


def evaluate_features(
    *,
    id_test: Labelled,
    train: Labelled | None = None,
    id_val: Labelled | None = None,
    ood_val: ArrayLike | None = None,
    near: Sets | None = None,
    far: Sets | None = None,
    csid: Sets | None = None,
    head: Any = None,
    methods: Any = ("knn",),
    tune: Tune | None = None,
    metrics: MetricOptions | Mapping[str, Any] | None = None,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    same_rows: Literal["error", "allow"] = "error",
    name: str = "features",
    backbone: str = "features",
    results: str | Path | bool | None = None,
    device: str = "auto",
) -> Results:
    """Return one result per method, on features that were computed elsewhere.

    Arrays may be numpy's, torch's, JAX's or memory-mapped ones (`np.load(file, mmap_mode="r")`), of any float type.
    They are read a few thousand rows at a time, as float32. What methods read (features, logits made by `head`) lies in
    the cache folder, memory-mapped, and is deleted at the end unless `results` keeps records.

    Args:
        id_test: ID test: (X, y) with X (n, d) and y (n,); X alone where the classes are not known, without accuracy.
        train: ID training: (X, y); X alone where nothing is classified. Needed by methods that are fitted on it.
        id_val: ID validation: (X, y) or X, for tuning and conformal selections.
        ood_val: (n, d) OOD validation, for tuning.
        near: semantically close OOD sets by name, X each.
        far: distant OOD sets by name.
        csid: covariate-shifted ID sets by name, (X, y) or X each.
        head: the linear classifier that makes logits: (W, b) with W (c, d), a torch.nn.Linear, or a fitted linear model
            of scikit-learn. Without it, methods that read logits or the head are not applicable.
        methods: names, as after `method=`; objects of any class that derives from Method; or both by name:
            `{"knn10": KNN(k=10), "knn50": KNN(k=50)}`. An object's hyper-parameters are not tuned.
        tune: `validation` chooses hyper-parameters on `id_val` against `ood_val`, as `run` does; `none` takes the
            defaults; None = validation where both are given.
        metrics: options, e.g. `{"replicates": 0}`; None = the defaults.
        seed: of what methods draw that are given by name and have a seed.
        classes: names of the ID classes; None = their numbers.
        same_rows: what to do with a row that is on two sides, e.g. a training row in an OOD test set: `error`, or
            `allow`, which is recorded. Published sets have some: CIFAR-10's and CIFAR-100's test sets share an image.
        name: of the benchmark that these sets make up, in records.
        backbone: of the network that made the features, in records.
        results: a folder for records, or True for the default one (`OPENBENCH_RESULTS`); the same call then finds its
            records. None = nothing is written.
        device: where methods compute: `auto`, `cpu`, `cuda`, …

    Raises:
        DataError: arrays that do not fit together, NaN, labels outside the classes, or no OOD set.
        LeakageError: a row is on two sides.
        NotApplicableError: a method reads what there is not.
        ConfigError: an unknown method, or options that do not fit.
    """
    check_value(seed, Seed, "seed")
    for key, value in (("name", name), ("backbone", backbone)):
        if not is_part(value):
            raise ConfigError(f"{key} — found {value!r} — allowed: {PART}")
    device = plain(device)
    given = {"id_test": id_test, "train": train, "id_val": id_val, "ood_val": ood_val}
    sets = {key: value for key, value in given.items() if value is not None}
    d = _Rows(_pair(id_test, "id_test")[0], "id_test").shape[1]
    linear = None if head is None else as_head(head, d)
    groups = {"near": near, "far": far, "csid": csid}
    c = None if linear is None else linear.num_classes
    benchmark, notes = as_benchmark(sets, groups, name=name, named=classes, c=c, same_rows=same_rows)
    for note in notes:
        logger.info(note)
    of_rows = Rows(backbone, d, head=linear).to(resolve_device(device))
    tuning, measured = _tuning(tune, benchmark), metric_options(metrics)
    specs = {}
    for key, given_method in named_methods(methods):
        chosen = _seeded(chosen_method(given_method, name=key), seed if isinstance(given_method, str) else None)
        check_classes(benchmark, of_rows, chosen.method, key)
        _check_fitted(benchmark, chosen)
        specs[key] = RunSpec(
            benchmark=benchmark,
            backbone=of_rows,
            method=for_layers(chosen.method, ()),
            method_name=key,
            space=chosen.space,
            tuning=tuning,
            metrics=measured,
            config={
                "benchmark": {"name": benchmark.name},
                "backbone": {NAME: of_rows.name},
                "method": dict(chosen.node),
                "tune": {"strategy": tuning.strategy},
                "metrics": {key: value for key, value in asdict(measured).items() if value is not None},
                "seed": seed,
            },
        )
    with _runtime(results, device) as (runtime, kept):
        return Results({key: _result(spec, runtime, kept, notes) for key, spec in specs.items()})


def _seeded(chosen: ChosenMethod, seed: int | None) -> ChosenMethod:
    """A method with the seed of the call, if it draws and was given by name."""
    if seed is None or "seed" not in chosen.method.params():
        return chosen
    return replace(chosen, method=with_params(chosen.method, {"seed": seed}), node={**chosen.node, "seed": seed})


def _tuning(tune: Tune | None, benchmark: Benchmark) -> Tuning:
    check_value(tune, Tune | None, "tune")
    both = benchmark.ood_val is not None and not benchmark.id_val.unread
    if tune == "validation" and not both:
        raise ConfigError(
            "tune — found 'validation' — id_val and ood_val are needed for it — give both, or tune='none'"
        )
    return Tuning(tune or ("validation" if both else "none"))


@contextmanager
def _runtime(results: str | Path | bool | None, device: str) -> Iterator[tuple[Runtime, bool]]:
    """How methods are carried out, and whether records are written; a cache of its own where they are not."""
    settings: dict[str, Any] = {"device": device, "batch_size": _BATCH, "progress": False}
    if results is not None and results is not False:
        folder = None if results is True else path_of(results, "results")
        yield Runtime(results=folder, **settings), True
        return
    parent = paths.cache_dir() / "arrays"
    parent.mkdir(parents=True, exist_ok=True)
    delete_old(parent, "*")
    with TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as own:
        yield Runtime(cache=Path(own), **settings), False


def _result(spec: RunSpec, runtime: Runtime, kept: bool, notes: tuple[str, ...]) -> Result:
    logger.info(f"{spec.method_name} on {spec.benchmark.name}")
    if kept:
        outcome, found = run(spec, runtime), list[SetScores]()
        with suppress(CacheError):  # the record was found, and its scores were deleted or lie in another cache
            found = ScoreStore(runtime.scores).read(outcome.record.run_id)
        return Result(outcome.record, tuple(found), outcome.path, (*notes, *outcome.notes), outcome.warnings)
    record, scores = compute(spec, runtime)
    return Result(record, tuple(scores[record.run_id]), None, notes)


def _check_fitted(benchmark: Benchmark, chosen: ChosenMethod) -> None:
    """Refuse a method that is fitted on a set that was not given, before anything is computed."""
    read = {leaf.request.fit_on for leaf in leaves(chosen.method)}
    read |= {Role.ID_VAL} if isinstance(chosen.method, Composite) else set()
    for role, split, argument in (
        (Role.ID_TRAIN, benchmark.id_train, "train=(X, y)"),
        (Role.ID_VAL, benchmark.id_val, "id_val=(X, y)"),
    ):
        if role in read and split.unread:
            raise NotApplicableError(
                f"method '{chosen.name}' is fitted on ID {'training' if role == Role.ID_TRAIN else 'validation'} "
                f"features — not given — pass {argument}, or choose a method that is not fitted, e.g. msp"
            )


SameRows = Literal["error", "allow"]
_SINGLE = {"train": Role.ID_TRAIN, "id_val": Role.ID_VAL, "id_test": Role.ID_TEST, "ood_val": Role.OOD_VAL}
_GROUPS = {"near": Role.NEAR, "far": Role.FAR, "csid": Role.CSID}
_ONE_CLASS = ("id",)


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
    """Names of n rows, for messages: `row 17`; a list of them would take as much memory as a column."""

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
    single: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any] | None],
    *,
    name: str,
    named: Sequence[str] | None,
    c: int | None,
    same_rows: SameRows,
) -> tuple[Benchmark, tuple[str, ...]]:
    """Return the benchmark that arrays make up, and what is to be told of them.

    Args:
        single: `train`, `id_val`, `id_test`, `ood_val`: (X, y) or X; those that there are.
        groups: `near`, `far`, `csid`: sets by name.
        name: of the benchmark.
        named: names of the ID classes; None = their numbers.
        c: the head's classes; None without a head.
        same_rows: what to do with a row that is on two sides.

    Raises:
        DataError: shapes, labels or values that do not fit.
        LeakageError: a row is on two sides.
    """
    check_value(same_rows, SameRows, "same_rows")
    if named is not None and np.asarray(named, dtype=object).ndim != 1:
        raise DataError(f"classes — found a {type(named).__name__} — allowed: the names of the ID classes")
    sets = [*(_given(key, _SINGLE[key], key, value) for key, value in single.items())]
    for group, role in _GROUPS.items():
        sets += [
            _given(name, role, f"{group} '{name}'", value) for name, value in named_sets(groups[group], group, "X")
        ]
    d = next(s for s in sets if s.role == Role.ID_TEST).rows.shape[1]
    for s in sets:
        if s.rows.shape[1] != d:
            raise DataError(
                f"{s.rows.where} — found {s.rows.shape[1]} features — id_test has {d} — pass the same features"
            )
    classes = _classes(sets, named, c)
    notes = tuple(note for s in sets if (note := _read(s)))
    notes += _refuse_same_rows(sets, same_rows)
    opened = [s.split(classes, len(classes) == 1) for s in sets]
    by_role = {s.role: s for s in opened}
    missing = {role: _absent(role, classes) for role in (Role.ID_TRAIN, Role.ID_VAL)}
    return Benchmark(
        name=name,
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
    labels = None if y is None or not role.is_id else class_indices(y, rows.shape[0], f"{where}: y")
    return _Set(name, role, rows, labels)


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
                f"{s.rows.where}: y — found the class {int(s.labels.max())} — allowed: 0 to {count - 1}, {of}"  # type: ignore[union-attr]
            )
    if named is not None and len(named) != count:
        raise DataError(f"classes — found {len(named)} names — {count} are needed, one for each class of the head")
    if named is not None:
        return tuple(str(name) for name in named)
    return _ONE_CLASS if count == 1 else tuple(map(str, range(count)))


def _read(s: _Set) -> str:
    """Read a set once: refuse what is not finite, digest each row. Return what is to be told of it."""
    n = s.rows.shape[0]
    items, hashes = RowItems((s.rows,)), np.empty((n, 16), dtype=np.uint8)
    for start in range(0, n, _BATCH):
        rows = items.gather(start, min(n, start + _BATCH))
        refuse_not_finite(rows, s.rows.where, start)
        hashes[start : start + len(rows)] = row_digests(rows)
    s.hashes = hashes
    kind = s.rows[:1].dtype
    return "" if kind == np.float32 else f"{s.rows.where}: {kind} read as float32"


def _refuse_same_rows(sets: Sequence[_Set], same_rows: SameRows) -> tuple[str, ...]:
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
        text = f"{first.rows.where} and {second.rows.where} have {len(shared):,} rows in common"
        if same_rows == "error":
            raise LeakageError(
                f"{text}, the first is row {int(shared[0])} of {second.rows.where} — what is learnt or tuned from must "
                "not be tested, and no sample is both ID and OOD — take them out of one set, or pass "
                "same_rows='allow', which is recorded"
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
