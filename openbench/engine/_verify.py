"""Verification of records: whether a repetition gives the same numbers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from openbench.core.benchmark import Benchmark
from openbench.core.method import Method, version_of
from openbench.core.record import ResultRecord, RunIdentity
from openbench.engine.provenance import RunOutcome
from openbench.errors import NotReproducedError, RecordError, listed
from openbench.results.records.compare import compare, one_more_seed, same_but_seed, setting, setting_of
from openbench.results.records.origin import made_by, processor, same_machinery
from openbench.results.records.store import RecordStore

if TYPE_CHECKING:
    from openbench.engine.run import RunSpec

_MOST = 5


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


def check_weights(old: ResultRecord, spec: "RunSpec") -> None:
    """Check before anything is computed that a run has the released weights of a record; trained ones may be others.

    Args:
        old: the record.
        spec: the run, built from the record's config.

    Raises:
        RecordError: other weights, or a run that would now have another id.
    """
    if spec.training is None and spec.backbone.digest != old.backbone["digest"]:
        here, there = (_short(sha) for sha in (spec.backbone.weights_sha256, old.backbone.get("weights_sha256")))
        why = f"weights or preprocessing of backbone '{spec.backbone.name}' differ (weights {here} here, {there} then)"
        raise _unverifiable(old, why)
    then, now = RunIdentity.of(old), spec.identity
    changed = sorted(name for name in {*then.sources, *now.sources} if then.sources.get(name) != now.sources.get(name))
    if changed:
        raise _unverifiable(old, f"{', '.join(changed)} changed since", "restore these files, or make a new record")
    if spec.training is None and now.committed.run_id != then.committed.run_id:
        raise _unverifiable(old, f"its config now makes run {spec.run_id}")


def recorded(records: RecordStore, spec: "RunSpec") -> tuple[ResultRecord, Path]:
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
    facts = spec.benchmark.digest, spec.training, spec.method_name, version_of(spec.method)
    wanted = setting(spec.identity.config, facts)
    alike = [record for record, _ in others.values() if spec.training and setting_of(record) == wanted]
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
