"""A run: cached features, tuning on validation, fit, scores, metrics, and a record that is written once."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openbench.backbones.base import Backbone
from openbench.config.build import from_node
from openbench.config.folders import packages_of
from openbench.config.overrides import STREAM
from openbench.core.benchmark import Benchmark, Split, Validation
from openbench.core.method import Method, StreamingMethod, StreamPlan, leaves, version_of
from openbench.core.names import FULL_SPECTRUM
from openbench.core.record import METHOD_PROBE, PROBE, REUSED, SOURCES, UNCOMMITTED, VARIANT, ResultRecord, RunIdentity
from openbench.core.request import Field, Request, Role
from openbench.core.runtime import Runtime
from openbench.core.scores import SetScores
from openbench.core.search import Tuned, settings_of, with_params
from openbench.digest import digest, still_as_before
from openbench.engine.compatibility import tells_apart
from openbench.engine.evaluate import (
    CachedFeatures,
    Fitting,
    Metrics,
    Scoring,
    class_scores,
    fit,
    predictions,
    score_split,
    score_streams,
)
from openbench.engine.probe import ask_method, same_scores
from openbench.engine.provenance import (
    WARNINGS,
    Clock,
    RunOutcome,
    TrainingInfo,
    describe_backbone,
    provenance,
    record_notes,
    reused_outcome,
    score_warnings,
)
from openbench.engine.tune import TestSplits, TuneContext, Tuning, folds_of, held_out, tune
from openbench.errors import MethodError, NotReproducedError, RecordError, listed
from openbench.features.attacks import Attack, Loss, acceptance, attacked, cross_entropy
from openbench.features.changed_images import synthetic
from openbench.features.texts import Corpus
from openbench.metrics.suite import MetricOptions, describe, evaluate, group_means
from openbench.public import public
from openbench.results.records.compare import compare, one_more_seed, same_but_seed, setting, setting_of
from openbench.results.records.origin import made_by, processor, same_machinery
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore, per_set_name
from openbench.source import foreign_sources, uncommitted

logger = logging.getLogger(__name__)

_MOST = 5  # differences in a message
_PER_SET = (
    "hyper-parameters chosen for each OOD set on that test set itself (oracle per set): a bound, not a result; each "
    "set is evaluated by itself, groups are means over sets, and nothing is pooled"
)


@dataclass(frozen=True)
class RunSpec:
    """A run to carry out: objects that are ready, and the scientific config they were built from.

    Args:
        benchmark: splits and promises.
        backbone: trained, on its device.
        method: unfitted, with its default hyper-parameters.
        method_name: what users type after `method=`.
        space: hyper-parameter → values to search; empty = nothing to tune.
        tuning: how the search is done.
        metrics: which metrics at which operating points.
        attack: on test images, which are scored besides the clean ones; None = none.
        config: the scientific config, plain and resolved; enters the record with public names.
        training_info: how the weights were trained.
        variant: distinguishes the method from one of the same sources and other scores; empty for the first one.
        overrides: that compose to the config; empty for objects from Python.
    """

    benchmark: Benchmark
    backbone: Backbone
    method: Method
    method_name: str
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    metrics: MetricOptions = field(default_factory=MetricOptions)
    attack: Attack | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    training_info: TrainingInfo = field(default_factory=TrainingInfo)
    variant: str = ""
    overrides: Sequence[str] = ()

    @cached_property
    def scientific(self) -> dict[str, Any]:
        """The config as records hold it: classes of openbench by their public names."""
        return {key: public(node) for key, node in self.config.items()}

    @cached_property
    def sources(self) -> dict[str, str]:
        """{module: SHA-256} of the code of this run that openbench does not ship, and {package: version}."""
        sources = foreign_sources(*self._parts)
        sources |= packages_of(sources)
        return {**sources, VARIANT: self.variant} if self.variant else sources

    @cached_property
    def uncommitted(self) -> dict[str, str]:
        """{file: SHA-256} of openbench's files in this run that differ from the commit, of all that it imports."""
        return uncommitted(__name__, parts=self._parts)

    @cached_property
    def texts(self) -> list[dict[str, Any]]:
        """The corpora of text that the method reads at any setting that is searched, as a record describes them."""
        searched = {} if self.tuning.strategy == "none" else self.space
        settings = (self.method, *settings_of(self.method, searched))
        corpora = dict.fromkeys(text for setting in settings for leaf in leaves(setting) for text in leaf.request.texts)
        return [Corpus(self.backbone, texts).described() for texts in corpora]

    @property
    def _parts(self) -> tuple[object, ...]:
        sources = (split.source for split in self.benchmark.splits())
        return (self.method, self.training_info.method, self.backbone, *sources)

    @property
    def stream(self) -> StreamPlan:
        """The streams that a streaming method scores."""
        node = self.config.get("method", {}).get(STREAM) or {}
        return from_node(StreamPlan, node, StreamPlan.named)

    @cached_property
    def images(self) -> dict[str, str]:
        """Role → digest of the images of sets that are read and enter the benchmark's digest as lists only."""
        return {s.role.value: s.digest for s in self.benchmark.splits() if s.identity and not s.unread}

    @property
    def run_id(self) -> str:
        """The digest that names the record."""
        return self.identity.run_id

    @cached_property
    def identity(self) -> RunIdentity:
        """The facts that identify the run."""
        outliers = self.training_info.outliers
        return RunIdentity(
            self.scientific,
            {"name": self.method_name, "version": version_of(self.method), "texts": self.texts},
            {"digest": self.benchmark.digest, "images": self.images},
            {
                "digest": self.backbone.digest,
                "training": self.training_info.name,
                "outliers_digest": None if outliers is None else outliers.digest,
            },
            {SOURCES: self.sources, UNCOMMITTED: self.uncommitted},
        )


def run(spec: RunSpec, runtime: Runtime) -> RunOutcome:
    """Carry out a run, or return its record if it is there.

    If another job writes the same record meanwhile, this run is compared with it.

    Raises:
        RecordError: the record exists and `on_existing=error`; it does not reproduce, with `on_existing=verify` or
            because another job wrote other numbers; or there is no record to verify.
        OpenbenchError: anything wrong with data, cache, method or scores.
    """
    records = RecordStore(runtime.records)
    if runtime.on_existing == "verify":
        return verify(spec, runtime, recorded(records, spec))
    existing = records.find(spec.run_id)
    if existing is not None and (variant := _variant(spec, existing[0], runtime)):
        spec = replace(spec, variant=variant)
        existing = records.find(spec.run_id)
    if existing is not None and runtime.on_existing == "skip":
        return reused_outcome(*existing, records)
    if existing is not None:
        raise RecordError(
            f"record {spec.run_id} exists in {existing[1]} — use runtime.on_existing=skip or runtime.on_existing=verify"
        )
    records.check_writable()
    record, scores = compute(spec, runtime)
    warnings = ScoreStore(runtime.scores).keep(scores)
    try:
        path = records.write(record)
    except RecordError:
        existing = records.find(spec.run_id)  # written by another job
        if existing is None or runtime.on_existing == "error":
            raise
        return verdict(*existing, record, records)
    notes = record_notes(record, records)
    return RunOutcome(record, path, "written", notes, warnings, tuple(scores.get(record.run_id, ())))


def verify(spec: RunSpec, runtime: Runtime, existing: tuple[ResultRecord, Path]) -> RunOutcome:
    """Compute a run and compare it with a record; nothing is written but cached features.

    Args:
        spec: the run.
        runtime: how it is carried out.
        existing: the record and its file.

    Raises:
        RecordError: the record is of another run, or does not reproduce.
    """
    if variant := (existing[0].provenance.get(SOURCES) or {}).get(VARIANT):
        spec = replace(spec, variant=variant)
    check_weights(existing[0], spec)
    record, _ = compute(spec, runtime)
    return verdict(*existing, record, RecordStore(runtime.records))


def _variant(spec: RunSpec, record: ResultRecord, runtime: Runtime) -> str:
    """Return a digest if the method scores otherwise than the one of the same sources that made a record, else "".

    Only cached features are read; without them the method counts as the same.
    """
    then = record.provenance.get(METHOD_PROBE)
    if not then or not foreign_sources(spec.method):
        return ""
    features = CachedFeatures.of(spec.backbone, runtime)
    if any(features.lacks(split) for split in _splits(spec) if split.role in (Role.ID_TRAIN, Role.ID_TEST)):
        return ""
    now = ask_method(spec.method, spec.benchmark, features)
    return "" if same_scores(then, now) else digest(now)


def compute(spec: RunSpec, runtime: Runtime) -> tuple[ResultRecord, dict[str, list[SetScores]]]:
    """Tune, fit, score and measure; nothing is written but cached features.

    Returns the record, and the scores by their name in the cache. The name is the run's id. If hyper-parameters are
    chosen per OOD set, each set has its own name, with its own scores of the ID side.
    """
    clock, backbone, benchmark, attack = Clock(), spec.backbone, spec.benchmark, spec.attack
    passes_before = backbone.passes
    features = CachedFeatures.of(backbone, runtime, clock)
    features.expect(_splits(spec))
    per_set = spec.tuning.strategy == "oracle_per_set" and bool(spec.space)
    parts = {
        name: _measured(replace(spec, benchmark=part), features, runtime.score_batch)
        for name, part in (single_sets(benchmark) if per_set else [("", benchmark)])
    }
    (first, *_), source = parts.values(), f"method '{spec.method_name}'"
    tuned = first.tuned.params
    if per_set:  # chosen values as {set: value}
        tuned = {key: {name: part.tuned.params[key] for name, part in parts.items()} for key in tuned}
    probe = (backbone.features_from or backbone).probe
    reused = {"weights": spec.training_info.reused, "features": features.reused}
    warnings = (warning for part in parts.values() for warning in score_warnings(source, part.scores))
    origins = {  # besides openbench's committed code
        SOURCES: spec.sources,
        UNCOMMITTED: spec.uncommitted,
        REUSED: {part: by for part, by in reused.items() if by},
        PROBE: probe and probe.recorded(),
        METHOD_PROBE: ask_method(spec.method, benchmark, features) if foreign_sources(spec.method) else [],
        WARNINGS: list(dict.fromkeys((*features.store.halving.warnings, *warnings))),
    }
    outliers = spec.training_info.outliers
    counted = (*benchmark.splits(), *((outliers,) if outliers is not None else ()))
    record = ResultRecord(
        run_id=spec.run_id,
        config=spec.scientific,
        benchmark={
            "name": benchmark.name,
            "digest": benchmark.digest,
            "pristine": benchmark.pristine and attack is None,
            "deviations": [*benchmark.deviations, *([str(attack)] if attack else [])],
            **({"images": spec.images} if spec.images else {}),
        },
        backbone=describe_backbone(backbone, spec.training_info, spec.config),
        method={
            "name": spec.method_name,
            "version": version_of(first.method),
            "reference": type(first.method).reference,
            "params": plain_params(first.method) | tuned,
            **({"texts": spec.texts} if spec.texts else {}),
            **({"stream": asdict(spec.stream)} if isinstance(first.method, StreamingMethod) else {}),
        },
        tuned=tuned,
        trials=[{"set": name, **t} if per_set else t for name, part in parts.items() for t in part.tuned.trials],
        metrics=joined_metrics({name: part.metrics for name, part in parts.items()}) if per_set else first.metrics,
        header=describe(spec.metrics) + f" · {_PER_SET}" * per_set,
        counts={
            f"{s.role}/{s.name}": {"n": len(s), "expected": s.expected}
            for s in (*counted, *(split for part in parts.values() for split in part.moved))
            if not s.unread
        },
        provenance=provenance(clock, backbone.device, backbone.passes - passes_before)
        | {key: origin for key, origin in origins.items() if origin},
        overrides=list(spec.overrides),
        config_digest=digest(spec.scientific),
    )
    names = {name: per_set_name(spec.run_id, name) if per_set else spec.run_id for name in parts}
    return record, {names[name]: part.scores for name, part in parts.items() if part.scores}


def single_sets(benchmark: Benchmark) -> Iterator[tuple[str, Benchmark]]:
    """Yield each near and far set's name with the benchmark reduced to that set."""
    for name, split in benchmark.near.items():
        yield name, replace(benchmark, near={name: split}, far={})
    for name, split in benchmark.far.items():
        yield name, replace(benchmark, near={}, far={name: split})


def joined_metrics(by_set: Mapping[str, Metrics]) -> Metrics:
    """Return the metrics of each set, the means of groups, and the metrics of `id` that are the same for all sets."""
    result: Metrics = {}
    for side in ("", FULL_SPECTRUM):
        parts = {name: metrics for name, metrics in by_set.items() if f"{side}{name}" in metrics}
        if not parts:
            continue
        result |= {f"{side}{name}": metrics[f"{side}{name}"] for name, metrics in parts.items()}
        for group in (Role.NEAR.value, Role.FAR.value):
            members = [metrics[f"{side}{group}"] for metrics in parts.values() if f"{side}{group}" in metrics]
            if members:
                result[f"{side}{group}"] = group_means(members)
        first, *rest = (metrics[f"{side}id"] for metrics in parts.values())
        result[f"{side}id"] = {
            key: value
            for key, value in first.items()
            if not key.startswith("f1_threshold") and all(other.get(key) == value for other in rest)
        }
    return result


@dataclass(frozen=True)
class _Measured:
    """A fitted method on a benchmark.

    Args:
        tuned: its search.
        method: fitted.
        metrics: by set and group.
        scores: that they are computed from; none of a streaming method.
        moved: attacked splits.
    """

    tuned: Tuned
    method: Method
    metrics: Metrics
    scores: list[SetScores] = field(default_factory=list)
    moved: list[Split] = field(default_factory=list)


def _measured(spec: RunSpec, features: CachedFeatures, batch: int) -> _Measured:
    """Tune, fit, score and measure."""
    benchmark, clock, device = spec.benchmark, features.clock, spec.backbone.device
    fitting, scoring = Fitting.of(benchmark, spec.backbone.head), Scoring(features, device, batch)
    with clock.stage("tune"):
        tuned = _tune(spec, fitting, scoring)
    with clock.stage("fit"):
        method = tuned.fitted or fit(with_params(spec.method, tuned.params), fitting, features, device)
    if isinstance(method, StreamingMethod):
        with clock.stage("score"):
            return _Measured(tuned, method, score_streams(method, spec.stream, benchmark, scoring))
    with clock.stage("attack"):
        moved = _attacked(method, spec, features)
    splits = tuple(s for s in (benchmark.id_val, benchmark.ood_val) if s is not None and not s.unread)
    classified = tells_apart(spec.backbone, benchmark)
    with clock.stage("score"):
        # First, so that it refuses before all the test sets are extracted.
        by_class = _class_values(method, spec, scoring)
        scores = [
            SetScores.of_split(
                split.name,
                split.role,
                score_split(method, split, scoring),
                np.asarray(split.labels, dtype=np.int64),
                predictions(split, features) if classified else np.full(len(split), -1),
            )
            for split in (*benchmark.test_splits(), *splits, *moved)
        ]
    with clock.stage("metrics"):
        logits = Request(fields=frozenset({Field.LOGITS}))
        # Without a classifier nothing can be right or wrong.
        labelled = _labelled(benchmark) if classified else []
        read = {split.role: features(split, logits).batches() for split in labelled}
        probabilities = {
            role: np.concatenate([torch.softmax(rows.logits, dim=1).cpu().numpy() for rows in batches])
            for role, batches in read.items()
        }
        sets = [
            replace(s, probabilities=probabilities.get(Role(s.role)), **by_class.get(Role(s.role), {})) for s in scores
        ]
        return _Measured(tuned, method, evaluate(sets, spec.metrics), sets, moved)


def _attacked(method: Method, spec: RunSpec, features: CachedFeatures) -> list[Split]:
    """Return the attacked test splits of a run, whose images are made now if they are not cached.

    Raises:
        NotApplicableError: a score or a network without a gradient by the images.
    """
    attack, backbone, benchmark = spec.attack, features.backbone, spec.benchmark
    if attack is None:
        return []
    splits: Iterable[Split] = (*benchmark.near.values(), *benchmark.far.values())
    loss: Loss = partial(acceptance, method, backbone)
    target = f"run {spec.run_id}"
    if attack.of == "id":
        splits, loss, target = (benchmark.id_test,), partial(cross_entropy, backbone), "cross-entropy"
    return [attacked(features.store, backbone, split, attack, loss=loss, target=target) for split in splits]


def _splits(spec: RunSpec) -> list[Split]:
    """Return the splits whose features a run reads, to score them or to fit the method."""
    fitted_on = {leaf.request.fit_on for leaf in leaves(spec.method)}
    unscored = {Role.ID_TRAIN, Role.OOD_TRAIN}
    if isinstance(spec.method, StreamingMethod):
        unscored |= {Role.ID_VAL, Role.OOD_VAL, Role.CSID}
    return [s for s in spec.benchmark.splits() if s.role not in unscored - fitted_on and not s.unread]


def _tune(spec: RunSpec, fitting: Fitting, scoring: Scoring) -> Tuned:
    if spec.tuning.strategy == "none" or not spec.space:
        return Tuned()

    def report(done: int, total: int, trial: dict[str, Any]) -> None:
        result = f"AUROC {trial['auroc']:.4f}" if "auroc" in trial else "infeasible"
        result += f", selective risk {trial['risk']:.4f}" if "risk" in trial else ""
        setting = ", ".join(f"{k}={v}" for k, v in trial["params"].items())
        logger.info(f"tune {spec.method_name}: {done}/{total} {setting}: {result}")

    strategy, benchmark = spec.tuning.strategy, spec.benchmark
    if strategy == "held_out_classes":
        folds = folds_of(len(benchmark.classes), spec.tuning.folds, spec.tuning.seed)
        return tune(spec.method, spec.space, *(held_out(f, benchmark, fitting, scoring, report) for f in folds))
    splits: Validation | TestSplits
    if strategy == "synthetic":
        ood = synthetic(benchmark.id_val, spec.tuning.recipes, spec.tuning.seed, spec.backbone.preprocess)
        splits = Validation(benchmark.id_val, ood)
    else:
        splits = benchmark.validation() if strategy == "validation" else TestSplits.of(benchmark)
    return tune(spec.method, spec.space, TuneContext(splits, fitting, scoring, report))


def _class_values(method: Method, spec: RunSpec, scoring: Scoring) -> dict[Role, dict[str, Any]]:
    """Return class-conditional scores (n, c) and probabilities of ID val and ID test, if the metrics use them."""
    options, c = spec.metrics, len(spec.benchmark.classes)
    if "prediction_sets" not in options.families or "score" not in options.set_kinds or c < 2:
        return {}
    values: dict[Role, dict[str, Any]] = {}
    for split in _labelled(spec.benchmark):
        scores = class_scores(method, split, scoring)
        if scores is None:
            continue
        if scores.shape[1] > c:
            raise MethodError(
                f"{type(method).__name__}.class_scores has {scores.shape[1]} columns for the {c} classes of benchmark "
                f"'{spec.benchmark.name}' — return one for each class, or leave `score` out of metrics.set_kinds"
            )
        # A method that learns classes from labels has no columns after the last class that it has seen.
        scores = np.pad(scores, ((0, 0), (0, c - scores.shape[1])), constant_values=np.inf)
        p = method.class_probabilities(torch.from_numpy(scores))
        probabilities = None if p is None else np.where(scores == np.inf, 0.0, p.double().numpy())
        values[split.role] = {"class_scores": scores, "class_probabilities": probabilities}
    return values


def _labelled(benchmark: Benchmark) -> list[Split]:
    """The splits of prediction sets, as far as they have labels."""
    return [s for s in (benchmark.id_val, benchmark.id_test) if not s.unread and s.labels.max() >= 0]


def plain_params(method: Method) -> dict[str, object]:
    """Return the hyper-parameters as a record holds them; a method among them is its name with its arguments.

    A field marked OMIT_IF_DEFAULT is left out while it has its default, so that earlier records reproduce.
    """
    later = {f.name for f in fields(method) if still_as_before(method, f)}  # type: ignore[arg-type]
    params = {name: value for name, value in method.params().items() if name not in later}
    return {name: _as_call(value) if isinstance(value, Method) else value for name, value in params.items()}


def _as_call(method: Method) -> str:
    return f"{type(method).__qualname__}({', '.join(f'{k}={v!r}' for k, v in plain_params(method).items())})"


def check_material(old: ResultRecord, benchmark: Benchmark, method: Method) -> None:
    """Check before a training begins that a run has the images and the method of a record.

    Args:
        old: the record.
        benchmark: as it was found here.
        method: as it is now.

    Raises:
        RecordError: other images, or another version of the method.
    """
    if benchmark.digest != old.benchmark["digest"]:
        here, then = ("; ".join(d) or "none" for d in (benchmark.deviations, old.benchmark["deviations"]))
        why = f"images differ (deviations from the benchmark here: {here}; in the record: {then})"
        raise _unverifiable(old, why, "provide the same data (python -m openbench data list)")
    name, version, recorded_at = old.method["name"], version_of(method), old.method["version"]
    if version != recorded_at:
        raise _unverifiable(old, f"method '{name}' is at version {version}, the record was made with {recorded_at}")


def _unverifiable(old: ResultRecord, why: str, way: str = "") -> RecordError:
    way = way or f"check out the commit that made it ({made_by(old)})"
    return RecordError(f"record {old.run_id} cannot be verified: {why} — {way}")


def check_weights(old: ResultRecord, spec: RunSpec) -> None:
    """Check before anything is computed that a run has the released weights of a record; trained ones may be others.

    Args:
        old: the record.
        spec: the run, built from the record's config.

    Raises:
        RecordError: other weights, or a run that would now have another id.
    """
    if spec.training_info.name is None and spec.backbone.digest != old.backbone["digest"]:
        here, there = (_short(sha) for sha in (spec.backbone.weights_sha256, old.backbone.get("weights_sha256")))
        why = f"weights or preprocessing of backbone '{spec.backbone.name}' differ (weights {here} here, {there} then)"
        raise _unverifiable(old, why)
    then, now = old.provenance.get(SOURCES) or {}, spec.identity.provenance.get(SOURCES) or {}
    changed = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
    if changed:
        raise _unverifiable(old, f"{', '.join(changed)} changed since", "restore these files, or make a new record")
    if spec.training_info.name is None and spec.identity.committed.run_id != RunIdentity.of(old).committed.run_id:
        raise _unverifiable(old, f"its config now makes run {spec.run_id}")


def recorded(records: RecordStore, spec: RunSpec) -> tuple[ResultRecord, Path]:
    """Return the record that a run would verify: its own, else one of the same config on other trained weights.

    Raises:
        RecordError: there is none.
    """
    # Developers want to know whether records still reproduce, so uncommitted changes do not make another run here.
    record = records.find(spec.run_id) or records.find(spec.identity.committed.run_id)
    if record is not None:
        return record
    errors: list[RecordError] = []
    names = spec.benchmark.name, spec.backbone.name, spec.method_name
    others = {record.run_id: (record, path) for record, path in records.of_method(*names, errors.append)}
    facts = spec.benchmark.digest, spec.training_info.name, spec.method_name, version_of(spec.method)
    wanted = setting(spec.identity.config, facts)
    alike = [record for record, _ in others.values() if spec.training_info.name and setting_of(record) == wanted]
    if not alike:
        raise RecordError(
            f"no record of this run in '{records.root}' to verify ({len(others)} of {', '.join(names)} with other "
            f"settings{_skipped(errors)}) — leave out runtime.on_existing=verify to write one"
        )
    return others[max(alike, key=lambda record: str(record.provenance.get("utc", ""))).run_id]


def verdict(old: ResultRecord, path: Path, new: ResultRecord, records: RecordStore) -> RunOutcome:
    """Return how a repetition compares with its record.

    Args:
        old: the record.
        path: its file.
        new: the repetition, which is not written.
        records: where the other seeds are.

    Raises:
        NotReproducedError: the numbers differ more than those of a repetition (or, on other weights, of one more seed).
    """
    where = f"recorded on {processor(old)}, repeated on {processor(new)}"
    if RunIdentity.of(new).committed.run_id != RunIdentity.of(old).committed.run_id:
        return _other_weights(old, path, new, records, where)
    comparison = compare(old, replace(new, run_id=old.run_id))
    if not comparison.reproduces:
        differences = listed(comparison.differ, _MOST, "; ", "; and ")
        raise NotReproducedError(
            f"record {old.run_id} does not reproduce: {len(comparison.differ)} values differ: {differences} "
            f"({where}) — compare versions in its provenance ({path})"
        )
    origin = "all features came from the cache; to begin with the images, add runtime.cache=AN_EMPTY_FOLDER"
    if passes := int(new.provenance.get("passes", 0)):
        origin = f"{passes:,} images went through the network; the other features came from the cache"
    return RunOutcome(old, path, "verified", (f"reproduces: {comparison}", where, origin))


def _other_weights(old: ResultRecord, path: Path, new: ResultRecord, records: RecordStore, where: str) -> RunOutcome:
    why = "training on another processor, with more or fewer threads, or with other libraries ends in other weights"
    if same_machinery(old, new):
        why = "although processor, threads and libraries are the same, so the training itself has changed since"
    weights = _short(new.backbone.get("weights_sha256")), _short(old.backbone.get("weights_sha256"))
    errors: list[RecordError] = []
    seeds = same_but_seed(records.readable(errors.append), old)
    networks = f"not the same network: weights {weights[0]}, in the record {weights[1]} ({why}{_skipped(errors)})"
    headlines = one_more_seed(old, new, seeds)
    outside = [headline for headline in headlines if headline.outside]
    if outside:
        raise NotReproducedError(
            f"record {old.run_id} does not reproduce: {networks}; {len(outside)} of {len(headlines)} numbers are "
            f"outside the interval of one more seed (99 %): {'; '.join(map(str, outside))}; {where} ({path})"
        )
    last = (
        f"its numbers are those of one more seed: within the intervals of {len(seeds)} recorded seeds (99 % each)"
        if any(headline.expected for headline in headlines)
        else "no other seed is recorded, so the numbers are only shown side by side"
    )
    return RunOutcome(old, path, "compared", (networks, where, *(f"  {headline}" for headline in headlines), last))


def _skipped(errors: Sequence[RecordError]) -> str:
    """Return a clause about files in the folder that are not records."""
    return f"; skipped, not records: {listed(errors, 1)}" if errors else ""


def _short(sha256: object) -> str:
    return str(sha256 or "unknown")[:12]
