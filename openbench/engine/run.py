"""One run: features from the cache, tuning on validation, scores, metrics, one write-once record."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from openbench.core.benchmark import Benchmark, Split
from openbench.core.composite import leaves, version_of
from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.record import PROBE, REUSED, SOURCES, UNCOMMITTED, ResultRecord
from openbench.core.request import Field, Request, Role
from openbench.core.scores import SetScores
from openbench.core.search import Tuned, with_params
from openbench.digest import still_as_before
from openbench.engine.cached import CachedFeatures
from openbench.engine.evaluate import (
    FeatureSource,
    Fitting,
    Scoring,
    class_scores,
    fit,
    no_predictions,
    predictions,
    score_splits,
)
from openbench.engine.outcomes.clock import Clock
from openbench.engine.outcomes.learnt import describe_backbone
from openbench.engine.outcomes.outcome import RunOutcome
from openbench.engine.outcomes.provenance import provenance
from openbench.engine.outcomes.remarks import remarks
from openbench.engine.outcomes.reuse import made_from, reused
from openbench.engine.per_set import each_alone, joined_record
from openbench.engine.runtime import Runtime
from openbench.engine.spec import RunSpec, images_read
from openbench.engine.tune import TestSplits, TuneContext, tune
from openbench.engine.verify import check_weights, recorded, verdict
from openbench.errors import MethodError, RecordError
from openbench.features.store import WHOLE, FeatureStore, Sharding
from openbench.metrics.suite import describe, evaluate
from openbench.results.records.store import RecordStore, ScoreStore
from openbench.results.scores.stored import per_set_name
from openbench.say import Say, silent


def run(spec: RunSpec, runtime: Runtime, say: Say = silent) -> RunOutcome:
    """Carry out a run, or return its record if it is there.

    If another job writes the same record meanwhile, this run is compared with it, so that the record is verified.

    Raises:
        RecordError: the record exists and `on_existing=error`; it does not reproduce, with `on_existing=verify` or
            because another job wrote other numbers; or there is no record to verify.
        OpenbenchError: anything wrong with data, cache, method or scores.
    """
    records = RecordStore(runtime.records)
    if runtime.on_existing == "verify":
        return verify(spec, runtime, recorded(records, spec), say)
    existing = records.find(spec.run_id)
    if existing is not None and runtime.on_existing == "skip":
        return reused(*existing, records)
    if existing is not None:
        raise RecordError(
            f"record {spec.run_id} exists in {existing[1]} — records are written once; "
            "use runtime.on_existing=skip or runtime.on_existing=verify"
        )
    records.check_writable()
    record, kept = compute(spec, runtime, say)
    warnings = ScoreStore(runtime.scores).keep(kept)
    try:
        notes = made_from(record, records)
        return RunOutcome(record, records.write(record), status="written", notes=notes, warnings=warnings)
    except RecordError:
        written_meanwhile = records.find(spec.run_id)
        if written_meanwhile is None or runtime.on_existing == "error":
            raise
    return verdict(*written_meanwhile, record, records)


def verify(spec: RunSpec, runtime: Runtime, existing: tuple[ResultRecord, Path], say: Say = silent) -> RunOutcome:
    """Compute a run and compare it with a record; nothing is written but cached features.

    Args:
        spec: the run.
        runtime: how it is carried out.
        existing: the record and its file.
        say: receives a line for everything that takes long.

    Raises:
        RecordError: the record is of another run, or does not reproduce.
    """
    check_weights(existing[0], spec)
    record, _ = compute(spec, runtime, say)
    return verdict(*existing, record, RecordStore(runtime.records))


def compute(spec: RunSpec, runtime: Runtime, say: Say) -> tuple[ResultRecord, dict[str, list[SetScores]]]:
    """Tune, fit, score and measure; nothing is written but cached features.

    Returns the record, and the scores by the name under which they are kept. The name is the run's id. If
    hyper-parameters are chosen per OOD set, each set has its own name, with its own scores of the ID side.
    """
    if spec.tuning.strategy != "oracle_per_set" or not spec.space:
        record, scores = _compute(spec, runtime, say)
        return record, {spec.run_id: scores}
    found = {name: _compute(replace(spec, benchmark=alone), runtime, say) for name, alone in each_alone(spec.benchmark)}
    joined = joined_record(spec.run_id, spec.benchmark, {name: record for name, (record, _) in found.items()})
    return joined, {per_set_name(spec.run_id, name): scores for name, (_, scores) in found.items()}


def _compute(spec: RunSpec, runtime: Runtime, say: Say) -> tuple[ResultRecord, list[SetScores]]:
    """Tune once, fit, score and measure."""
    clock = Clock()
    backbone, benchmark = spec.backbone, spec.benchmark
    passes_before = backbone.passes
    device = backbone.device
    features = CachedFeatures(feature_store(runtime, say, runtime.sharding), backbone, clock, say)
    features.expect(_read(spec))
    fitting = Fitting.of(benchmark, backbone.head)
    scoring = Scoring(features, device, runtime.score_batch)
    with clock.stage("tune"):
        tuned = _tune(spec, fitting, scoring, say)
    with clock.stage("fit"):
        method = tuned.fitted or fit(with_params(spec.method, tuned.params), fitting, features, device)
    splits = tuple(s for s in (benchmark.id_val, benchmark.ood_val) if s is not None and not s.unread)
    with clock.stage("score"):
        # First, so that it refuses before all the test sets are extracted.
        by_class = _class_scores(method, spec, scoring)
        scores = score_splits(
            method,
            (*benchmark.test_splits(), *splits),
            scoring,
            predictions if spec.classified else no_predictions,
        )
    with clock.stage("metrics"):
        sets = metric_sets(scores, benchmark, features, by_class, _class_probabilities(method, by_class))
        metrics = evaluate(sets, spec.metrics)
    record = ResultRecord(
        run_id=spec.run_id,
        config=spec.scientific,
        benchmark={
            "name": benchmark.name,
            "digest": benchmark.digest,
            "pristine": benchmark.pristine,
            "deviations": list(benchmark.deviations),
            **({"images": images} if (images := images_read(benchmark)) else {}),
        },
        backbone=describe_backbone(backbone, spec.learnt, spec.config),
        method={
            "name": spec.method_name,
            "version": version_of(method),
            "reference": type(method).reference,
            "params": plain_params(method),
            **({"texts": spec.texts} if spec.texts else {}),
        },
        tuned=tuned.params,
        trials=tuned.trials,
        metrics=metrics,
        header=describe(spec.metrics),
        counts={
            f"{s.role}/{s.name}": {"n": len(s), "expected": s.expected}
            for s in (*benchmark.splits(), *((spec.outliers,) if spec.outliers else ()))
            if not s.unread
        },
        provenance=provenance(clock, device, backbone.passes - passes_before)
        | _made_from(spec, features)
        | remarks(f"method '{spec.method_name}'", scores, features.store.halving.said),
    )
    return record, sets


def _read(spec: RunSpec) -> list[Split]:
    """The splits whose features a run reads: what is scored, and what the method is fitted on."""
    fitted_on = {leaf.request.fit_on for leaf in leaves(spec.method)}
    unscored = {Role.ID_TRAIN, Role.OOD_TRAIN} - fitted_on
    return [s for s in spec.benchmark.splits() if s.role not in unscored and not s.unread]


def _made_from(spec: RunSpec, features: CachedFeatures) -> dict[str, Any]:
    """What went into a record besides openbench's committed code: foreign sources, changed files, reused parts."""
    weights = "" if spec.learnt is None else spec.learnt.reused
    kept = {name: made for name, made in (("weights", weights), ("features", features.reused)) if made}
    probe = (spec.backbone.features_from or spec.backbone).probe
    found = {SOURCES: spec.sources, UNCOMMITTED: spec.uncommitted, REUSED: kept, PROBE: probe and probe.recorded()}
    return {key: of for key, of in found.items() if of}


def _tune(spec: RunSpec, fitting: Fitting, scoring: Scoring, say: Say) -> Tuned:
    if spec.tuning.strategy == "none" or not spec.space:
        return Tuned()

    def report(done: int, total: int, trial: dict[str, Any]) -> None:
        result = f"AUROC {trial['auroc']:.4f}" if "auroc" in trial else "infeasible"
        result += f", selective risk {trial['risk']:.4f}" if "risk" in trial else ""
        shown = ", ".join(f"{k}={v}" for k, v in trial["params"].items())
        say(f"tune {spec.method_name}: {done}/{total} {shown}: {result}")

    on_test = spec.tuning.strategy in ("oracle", "oracle_per_set")
    splits = TestSplits.of(spec.benchmark) if on_test else spec.benchmark.validation()
    context = TuneContext(splits, fitting, scoring, report)
    return tune(spec.method, spec.space, context)


def feature_store(runtime: Runtime, say: Say, sharding: Sharding = WHOLE) -> FeatureStore:
    """The feature store of a runtime; `say` receives what it has to tell."""
    return FeatureStore(
        runtime.features,
        batch_size=runtime.batch_size,
        workers=runtime.workers,
        progress=runtime.progress,
        sharding=sharding,
        say=say,
    )


def _class_scores(method: Method, spec: RunSpec, scoring: Scoring) -> dict[Role, NDArray[np.float32]]:
    """The class-conditional scores of ID val and ID test, where the metrics ask for them and the method has them."""
    options, benchmark = spec.metrics, spec.benchmark
    if "prediction_sets" not in options.families or "score" not in options.set_kinds or len(benchmark.classes) < 2:
        return {}
    c = len(benchmark.classes)
    found = {}
    for split in _classified(benchmark):
        scores = found[split.role] = class_scores(method, split, scoring)
        if scores is not None and scores.shape[1] > c:
            raise MethodError(
                f"{type(method).__name__}.class_scores: {scores.shape[1]} classes — benchmark '{benchmark.name}' has "
                f"{c} — return one column for each, or leave `score` out of metrics.set_kinds"
            )
    # A method that learns classes from labels has no columns after the last class that it has seen.
    return {
        role: np.pad(scores, ((0, 0), (0, c - scores.shape[1])), constant_values=np.inf)
        for role, scores in found.items()
        if scores is not None
    }


def _classified(benchmark: Benchmark) -> list[Split]:
    """The splits that prediction sets are made of, as far as there are samples with labels."""
    return [s for s in (benchmark.id_val, benchmark.id_test) if not s.unread and s.labels.max() >= 0]


def _class_probabilities(
    method: Method, by_class: Mapping[Role, NDArray[np.float32]]
) -> dict[Role, NDArray[np.float64]]:
    """Class-conditional scores as probabilities, where the method made them from probabilities."""
    found: dict[Role, NDArray[np.float64]] = {}
    for role, scores in by_class.items():
        probabilities = method.class_probabilities(torch.from_numpy(scores))
        if probabilities is not None:
            # A class at +inf is one that the method has not seen: its probability is 0.
            found[role] = np.where(scores == np.inf, 0.0, probabilities.double().numpy())
    return found


def plain_params(method: Method) -> dict[str, object]:
    """The hyper-parameters as a record holds them; a method among them is its name with its arguments.

    One that was added after records had been written is left out while it has its default, so that they reproduce.
    """
    late = {f.name for f in fields(method) if still_as_before(method, f)}  # type: ignore[arg-type]
    kept = {name: value for name, value in method.params().items() if name not in late}
    return {name: _written(value) if isinstance(value, Method) else value for name, value in kept.items()}


def _written(method: Method) -> str:
    """A method's name with its arguments, as Python writes it."""
    return f"{type(method).__qualname__}({', '.join(f'{k}={v!r}' for k, v in plain_params(method).items())})"


def metric_sets(
    scores: list[SetScores],
    benchmark: Benchmark,
    features: FeatureSource,
    by_class: Mapping[Role, NDArray[np.float32]] = MappingProxyType({}),
    as_probabilities: Mapping[Role, NDArray[np.float64]] = MappingProxyType({}),
) -> list[SetScores]:
    """Return the scores with the class probabilities and scores that prediction sets need on ID val and ID test.

    Args:
        scores: of all splits.
        benchmark: where they come from.
        features: the source of the logits.
        by_class: the method's class-conditional scores (n, c) of ID val and ID test, if it has any.
        as_probabilities: the same as probabilities (n, c), where they were made from probabilities.
    """
    # Where nothing is classified, nothing can be right or wrong.
    classified = any(s.correct is not None for s in scores)
    probabilities = {
        split.role: softmax(features(split, Request(fields=frozenset({Field.LOGITS}))))
        for split in _classified(benchmark)
        if classified
    }
    return [
        replace(
            s,
            probabilities=probabilities.get(Role(s.role)),
            class_scores=by_class.get(Role(s.role)),
            class_probabilities=as_probabilities.get(Role(s.role)),
        )
        for s in scores
    ]


def softmax(x: FeatureSet) -> NDArray[np.float32]:
    """Return the class probabilities (n, c) float32 of cached logits."""
    return np.concatenate([torch.softmax(rows.logits, dim=1).cpu().numpy() for rows in x.batches()])
