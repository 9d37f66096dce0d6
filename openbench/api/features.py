"""Evaluation of methods on features that the caller has computed; arrays of any size, read in batches."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
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
    check_model_name,
    class_indices,
    metric_options,
    named_sets,
    path_of,
    plain,
    refuse_not_finite,
)
from openbench.api.methods import chosen_method, named_methods
from openbench.api.result import Result, Results, result_of_run
from openbench.backbones.base import resolve_device
from openbench.backbones.rows import AS_THEY_ARE, Rows
from openbench.config.constraints import Seed, check_value
from openbench.config.overrides import NAME
from openbench.core.benchmark import Benchmark, RowItems, Split, must_differ
from openbench.core.method import leaves
from openbench.core.request import Role
from openbench.core.runtime import Runtime
from openbench.core.search import ChosenMethod, with_params
from openbench.digest import array_sha256, digest, row_digests
from openbench.engine.compatibility import check_classes
from openbench.engine.evaluate import for_layers
from openbench.engine.run import RunSpec, compute, run
from openbench.engine.tune import Tuning, check_strategy
from openbench.errors import ConfigError, DataError, LeakageError, NotApplicableError
from openbench.metrics.suite import MetricOptions
from openbench.storage.files import delete_old

logger = logging.getLogger(__name__)

Tune = Literal["validation", "none", "held_out_classes"]
Labelled = ArrayLike | tuple[ArrayLike, ArrayLike]
Sets = Mapping[str, Labelled]
_BATCH = 4096  # rows read at a time
_GROUPS = ("near", "far", "csid")
_ROLES = {"train": Role.ID_TRAIN} | {key: Role(key) for key in ("id_test", "id_val", "ood_val", *_GROUPS)}


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
    name: str = "features",
    backbone: str = "features",
    results: str | Path | bool | None = None,
    device: str = "auto",
) -> Results:
    """Evaluate OOD detection methods on features that were computed elsewhere.

    Arrays may be numpy's, torch's, JAX's or memory-mapped (`np.load(file, mmap_mode="r")`), of any float type. They are
    read in batches, as float32. Nothing is written unless `results` asks for records.

    Example:
        results = ob.evaluate_features(train=(X, y), id_test=(X_test, y_test), far={"svhn": X_svhn}, methods="knn")
        print(results)

    Args:
        id_test: ID test set: (X, y) with X (n, d) and y (n,); X alone = without accuracy.
        train: ID training set: (X, y), or X where nothing is classified; for methods that are fitted on it.
        id_val: ID validation set: (X, y) or X, for tuning and conformal selection.
        ood_val: (n, d) OOD validation set, for tuning.
        near: semantically close OOD sets by name, X each.
        far: distant OOD sets by name, X each.
        csid: covariate-shifted ID sets by name, (X, y) or X each.
        head: the linear classifier, for methods that read logits: (W, b) with W (c, d), a torch.nn.Linear, or a fitted
            linear model of scikit-learn.
        methods: a name, a method object (which is not tuned), a list of these, or a mapping from your names to them.
        tune: `validation`, `none`, or `held_out_classes`, which needs no OOD rows. None = validation if `id_val` and
            `ood_val` are given.
        metrics: options, e.g. `{"replicates": 0}`; None = the defaults.
        seed: of methods that draw random numbers.
        classes: names of the ID classes; None = their numbers.
        name: of the benchmark in records.
        backbone: name of the network in records.
        results: folder of records, or True for the default one. None = no records.
        device: where methods compute: `auto`, `cpu`, `cuda`, …

    Returns:
        Results by method.

    Raises:
        DataError: arrays that do not fit, NaN, labels outside the classes, or no OOD set.
        LeakageError: sets that must differ share a row.
        NotApplicableError: a method reads something that was not given.
        ConfigError: an unknown method, or options that do not fit.
    """
    check_value(seed, Seed, "seed")
    check_model_name(name)
    check_model_name(backbone, "backbone")
    single = {"id_test": id_test, "train": train, "id_val": id_val, "ood_val": ood_val}
    sets = [_Features(key, _ROLES[key], key, value) for key, value in single.items() if value is not None]
    for group, given in {"near": near, "far": far, "csid": csid}.items():
        for set_name, value in named_sets(given, group, "X"):
            sets.append(_Features(set_name, _ROLES[group], f"{group} '{set_name}'", value))
    d = sets[0].shape[1]
    linear = None if head is None else as_head(head, d)
    benchmark, notes = _benchmark(sets, name, classes, None if linear is None else linear.num_classes)
    for note in notes:
        logger.info(note)
    rows = Rows(backbone, d, head=linear).to(resolve_device(plain(device)))
    tuning, options = _tuning(tune, benchmark), metric_options(metrics)
    folds = {"folds": tuning.folds, "seed": tuning.seed} if tune == "held_out_classes" else {}
    specs = {}
    for key, method in named_methods(methods):
        chosen = chosen_method(method, name=key)
        if isinstance(method, str) and "seed" in chosen.method.params():
            seeded = with_params(chosen.method, {"seed": seed})
            chosen = replace(chosen, method=seeded, node={**chosen.node, "seed": seed})
        check_strategy(tuning, chosen, benchmark)
        check_classes(benchmark, rows, chosen.method, key)
        _check_fitted(benchmark, chosen)
        specs[key] = RunSpec(
            benchmark=benchmark,
            backbone=rows,
            method=for_layers(chosen.method, ()),
            method_name=key,
            space=chosen.space,
            tuning=tuning,
            metrics=options,
            config={
                "benchmark": {"name": benchmark.name},
                "backbone": {NAME: rows.name},
                "method": dict(chosen.node),
                "tune": {"strategy": tuning.strategy, **folds},
                "metrics": {key: value for key, value in asdict(options).items() if value is not None},
                "seed": seed,
            },
        )
    with _runtime(results, plain(device)) as (runtime, writes):
        return Results({key: _result(spec, runtime, writes, notes) for key, spec in specs.items()})


def _tuning(tune: Tune | None, benchmark: Benchmark) -> Tuning:
    check_value(tune, Tune | None, "tune")
    both = benchmark.ood_val is not None and not benchmark.id_val.unread
    if tune == "validation" and not both:
        raise ConfigError("tune='validation' needs id_val and ood_val — give both, or tune='none'")
    return Tuning(tune or ("validation" if both else "none"))


@contextmanager
def _runtime(results: str | Path | bool | None, device: str) -> Iterator[tuple[Runtime, bool]]:
    """The runtime of the methods, and whether records are written; without records, the cache is a temporary folder."""
    settings: dict[str, Any] = {"device": device, "batch_size": _BATCH, "progress": False}
    if results is not None and results is not False:
        folder = None if results is True else path_of(results, "results")
        yield Runtime(results=folder, **settings), True
        return
    parent = paths.cache_dir() / "arrays"
    parent.mkdir(parents=True, exist_ok=True)
    delete_old(parent, "*")
    with TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as cache:
        yield Runtime(cache=Path(cache), **settings), False


def _result(spec: RunSpec, runtime: Runtime, writes: bool, notes: tuple[str, ...]) -> Result:
    logger.info(f"{spec.method_name} on {spec.benchmark.name}")
    if writes:
        return result_of_run(run(spec, runtime), runtime, notes)
    record, scores = compute(spec, runtime)
    return Result(record, tuple(scores[record.run_id]), None, notes)


def _check_fitted(benchmark: Benchmark, chosen: ChosenMethod) -> None:
    """Refuse a method that is fitted on a set that was not given, before anything is computed."""
    roles = {leaf.request.fit_on for leaf in leaves(chosen.method)} | {chosen.method.request.fit_on}
    for split, what in (
        (benchmark.id_train, "training features — pass train"),
        (benchmark.id_val, "validation features — pass id_val"),
    ):
        if split.role in roles and split.unread:
            raise NotApplicableError(f"method '{chosen.name}' is fitted on ID {what}=(X, y), or choose e.g. msp")


class _Features:
    """One argument with features: an array of any library, of which each slice converts what it returns.

    Attributes:
        rows: anything with a shape that is sliced by rows.
        shape: (n, d).
        labels: (n,) classes; None where they are not known.
        hashes: (n, 16) uint8 digest of each row, once they are read.
    """

    hashes: NDArray[np.uint8]

    def __init__(self, name: str, role: Role, where: str, value: Any) -> None:
        """Check an argument (X, y), or X alone, except for its values; `where` is its name in messages."""
        X, y = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
        if isinstance(X, tuple):
            raise DataError(f"{where} has {len(X)} values — allowed: (X, y), or X alone")
        self.name, self.role, self.where = name, role, where
        self.rows = X if hasattr(X, "shape") else as_array(X, where)
        self.shape = tuple(int(side) for side in self.rows.shape)
        if len(self.shape) != 2 or 0 in self.shape:
            raise DataError(f"{where} has shape {self.shape} — allowed: (n, d), a row of features for each sample")
        self.labels = None if y is None or not role.is_id else class_indices(y, self.shape[0], f"{where}: y")

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return as_array(self.rows[index], self.where)

    def read(self) -> str:
        """Read all rows once: refuse NaN and infinity, digest each row. Return their dtype."""
        n, items, digests = self.shape[0], RowItems((self,)), []
        for start in range(0, n, _BATCH):
            rows = items.gather(start, min(n, start + _BATCH))
            refuse_not_finite(rows, self.where, start)
            digests.append(row_digests(rows))
        self.hashes = np.concatenate(digests)
        return str(self[:1].dtype)

    def split(self, classes: tuple[str, ...]) -> Split:
        """Return the set as a split of the benchmark."""
        (n, d), labels = self.shape, self.labels
        if labels is None:
            labels = np.full(n, 0 if len(classes) == 1 and self.role.is_id else -1, dtype=np.int64)
        content = {"rows": array_sha256(self.hashes), "columns": d, "labels": labels}
        return Split(
            name=self.name,
            role=self.role,
            items=RowItems((self,)),
            labels=labels,
            keys=range(n),  # type: ignore[arg-type] # in messages; texts would take as much memory as a column
            classes=classes if self.role.is_id else (),
            digest=digest(content),
            expected=n,
        )


def _benchmark(
    sets: Sequence[_Features], name: str, class_names: Sequence[str] | None, c: int | None
) -> tuple[Benchmark, tuple[str, ...]]:
    """The benchmark of some arrays, and notes on them.

    Args:
        sets: ID test first.
        name: of the benchmark.
        class_names: of the ID classes; None = their numbers.
        c: number of classes of the head; None without a head.
    """
    d = sets[0].shape[1]
    for s in sets:
        if s.shape[1] != d:
            raise DataError(f"{s.where} has {s.shape[1]} features — pass {d} features, as in id_test")
    classes = _classes(sets, class_names, c)
    by_kind: dict[str, list[str]] = {}
    for s in sets:
        by_kind.setdefault(s.read(), []).append(s.where)
    notes = [f"{', '.join(names)}: {kind} read as float32" for kind, names in by_kind.items() if kind != "float32"]
    _check_apart(sets)
    splits = [s.split(classes) for s in sets]
    by_role = {s.role: s for s in splits}
    groups = {group: {s.name: s for s in splits if s.role == _ROLES[group]} for group in _GROUPS}
    benchmark = Benchmark(
        name=name,
        classes=classes,
        id_train=by_role.get(Role.ID_TRAIN) or _absent(Role.ID_TRAIN, classes),
        id_val=by_role.get(Role.ID_VAL) or _absent(Role.ID_VAL, classes),
        id_test=by_role[Role.ID_TEST],
        ood_val=by_role.get(Role.OOD_VAL),
        preprocess=AS_THEY_ARE,
        **groups,  # type: ignore[arg-type]
    )
    return benchmark, tuple(notes)


def _classes(sets: Sequence[_Features], names: Sequence[str] | None, c: int | None) -> tuple[str, ...]:
    """The names of the ID classes; a single one where no labels are given.

    Raises:
        DataError: labels beyond the classes, or training features without labels where others have some.
    """
    if names is not None and np.asarray(names, dtype=object).ndim != 1:
        raise DataError(f"classes is a {type(names).__name__} — pass the names of the ID classes")
    largest = {s.where: int(s.labels.max()) for s in sets if s.labels is not None}
    train = next((s for s in sets if s.role == Role.ID_TRAIN), None)
    count, source = c or (0 if names is None else len(names)), "the head" if c else "classes"
    if not count:
        count, source = 1 + largest.get("train", next(iter(largest.values()), 0)), "train"
    if train is not None and train.labels is None and count > 1:
        raise DataError(f"train is X without y, and there are {count} classes — pass train=(X, y)")
    for where, label in largest.items():
        if label >= count:
            raise DataError(f"{where}: y has the class {label} — allowed: 0 to {count - 1}, as in {source}")
    if names is not None and len(names) != count:
        raise DataError(f"classes has {len(names)} names — pass {count}, one for each class of the head")
    if names is not None:
        return tuple(map(str, names))
    return ("id",) if count == 1 else tuple(map(str, range(count)))


def _check_apart(sets: Sequence[_Features]) -> None:
    """Compare sets that must differ by the digests of their rows.

    Raises:
        LeakageError: they share a row.
    """
    keys = {s.where: np.ascontiguousarray(s.hashes).view("S16")[:, 0] for s in sets}
    for first, second in combinations(sets, 2):
        if not must_differ(first.role, second.role):
            continue
        shared = np.flatnonzero(np.isin(keys[second.where], keys[first.where]))
        if len(shared):
            text = f"{first.where} and {second.where} have {len(shared):,} rows in common"
            raise LeakageError(f"{text}, the first is row {shared[0]} of {second.where} — remove them")


def _absent(role: Role, classes: tuple[str, ...]) -> Split:
    """A set that was not given and that nothing reads."""
    items = RowItems((np.empty((0, 1), np.float32),))
    return Split(str(role), role, items, np.empty(0, np.int64), (), classes, "", 0, unread=True)
