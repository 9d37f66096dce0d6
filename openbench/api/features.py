"""Methods on features that the caller has already: arrays in, results out; nothing of their size is kept in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from openbench import paths
from openbench.api.arguments import check_say, device_name, folder_of, metric_options
from openbench.api.arrays import ArrayLike, as_head
from openbench.api.feature_sets import SetOptions, as_benchmark
from openbench.api.methods import chosen_method, named_methods
from openbench.api.result import Result, Results
from openbench.backbones.device import resolve_device
from openbench.backbones.rows import Rows
from openbench.config.constraints import Seed, check_value
from openbench.config.overrides import NAME
from openbench.core.benchmark import Benchmark
from openbench.core.composite import Composite, leaves
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.core.search import ChosenMethod, with_params
from openbench.engine.compatibility import check_classes
from openbench.engine.evaluate import for_layers
from openbench.engine.run import RunSpec, compute, run
from openbench.engine.runtime import Runtime
from openbench.engine.tune import Tuning
from openbench.errors import CacheError, ConfigError, NotApplicableError
from openbench.metrics.suite import MetricOptions
from openbench.results.names import PART, is_part
from openbench.results.scores.stored import ScoreStore
from openbench.say import Say, silent
from openbench.storage.files import delete_old

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
    say: Say = silent,
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
        say: receives a line for everything that takes long.

    Raises:
        DataError: arrays that do not fit together, NaN, labels outside the classes, or no OOD set.
        LeakageError: a row is on two sides.
        NotApplicableError: a method reads what there is not.
        ConfigError: an unknown method, or options that do not fit.
    """
    check_value(seed, Seed, "seed")
    check_say(say)
    for key, value in (("name", name), ("backbone", backbone)):
        if not is_part(value):
            raise ConfigError(f"{key} — found {value!r} — allowed: {PART}")
    device = device_name(device)
    given = {"id_test": id_test, "train": train, "id_val": id_val, "ood_val": ood_val}
    sets = {key: value for key, value in given.items() if value is not None}
    options = SetOptions(name, classes, same_rows, _BATCH, say)
    d = options.columns(id_test)
    linear = None if head is None else as_head(head, d)
    groups = {role: {} if group is None else group for role, group in (("near", near), ("far", far), ("csid", csid))}
    benchmark, notes = as_benchmark(sets, groups, options, None if linear is None else linear.num_classes)
    task = _Task(
        benchmark,
        Rows(backbone, d, head=linear).to(resolve_device(device)),
        _tuning(tune, benchmark),
        metric_options(metrics),
        seed,
    )
    specs = {chosen.name: task.spec(chosen) for chosen in _chosen(methods, seed)}
    with _runtime(results, device) as (runtime, kept):
        return Results({key: _result(spec, runtime, kept, notes, say) for key, spec in specs.items()})


@dataclass(frozen=True)
class _Task:
    """What all methods of one call have in common."""

    benchmark: Benchmark
    backbone: Rows
    tuning: Tuning
    metrics: MetricOptions
    seed: int

    def spec(self, chosen: ChosenMethod) -> RunSpec:
        """The run of one method, after checking that it can be carried out."""
        check_classes(self.benchmark, self.backbone, chosen.method, chosen.name)
        _check_fitted(self.benchmark, chosen)
        return RunSpec(
            benchmark=self.benchmark,
            backbone=self.backbone,
            method=for_layers(chosen.method, ()),
            method_name=chosen.name,
            space=chosen.space,
            tuning=self.tuning,
            metrics=self.metrics,
            config={
                "benchmark": {"name": self.benchmark.name},
                "backbone": {NAME: self.backbone.name},
                "method": dict(chosen.node),
                "tune": {"strategy": self.tuning.strategy},
                "metrics": {key: value for key, value in asdict(self.metrics).items() if value is not None},
                "seed": self.seed,
            },
        )


def _chosen(methods: Any, seed: int) -> Iterator[ChosenMethod]:
    """The methods by the names that results have; the seed goes to those that were named and draw."""
    for name, method in named_methods(methods):
        found = chosen_method(method, name=name)
        yield _seeded(found, method, seed)


def _seeded(chosen: ChosenMethod, given: Any, seed: int) -> ChosenMethod:
    if not isinstance(given, str) or "seed" not in chosen.method.params():
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
        folder = None if results is True else folder_of(results, "results")
        yield Runtime(results=folder, **settings), True
        return
    parent = paths.cache_dir() / "arrays"
    parent.mkdir(parents=True, exist_ok=True)
    delete_old(parent, "*")
    with TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as own:
        yield Runtime(cache=Path(own), **settings), False


def _result(spec: RunSpec, runtime: Runtime, kept: bool, notes: tuple[str, ...], say: Say) -> Result:
    say(f"{spec.method_name} on {spec.benchmark.name}")
    if kept:
        outcome, found = run(spec, runtime, say), list[SetScores]()
        with suppress(CacheError):  # the record was found, and its scores were deleted or lie in another cache
            found = ScoreStore(runtime.scores).read(outcome.record.run_id)
        return Result(outcome.record, tuple(found), outcome.path, (*notes, *outcome.notes), outcome.warnings)
    record, scores = compute(spec, runtime, say)
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
