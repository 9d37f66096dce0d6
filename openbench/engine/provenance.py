"""How numbers came about: what a run and its record say of network, code, machine, time and scores."""

import logging
import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import openbench
from openbench.checkout import commit, dirty
from openbench.config.overrides import AUGMENT
from openbench.core.record import PROBE, REUSED, SOURCES, UNCOMMITTED, VARIANT, ResultRecord
from openbench.core.scores import SetScores
from openbench.results.records.origin import made_by
from openbench.results.records.store import RecordStore
from openbench.results.records.superseded import superseding
from openbench.source import changed_since_loaded, unknown_sources

if TYPE_CHECKING:  # without torch, so that the metrics of a file of scores are there at once
    import torch

    from openbench.backbones.base import Backbone
    from openbench.core.benchmark import Split
    from openbench.training.base import TrainingMethod

Status = Literal["written", "skipped", "verified", "compared"]
WARNINGS = "warnings"  # key of a record's provenance: what was said of the scores, and of memory
_TURNED = 0.4  # an AUROC below this in every set speaks of scores with the other sign
_VARIANT = (
    "a network of the same class, sources, weights and preprocessing made other outputs of the same images before: "
    "something else that it or its preprocess reads has changed, so this is another network, with results of its own"
)
_OTHER_METHOD = (
    "a method of the same sources and hyper-parameters scored the same rows otherwise before: something else that it "
    "reads has changed, so this is another method, with results of its own"
)
_STARTED = datetime.now(UTC).replace(microsecond=0)  # of this process
logger = logging.getLogger(__name__)
_LIBRARIES = (
    *("torch", "torchvision", "numpy", "scipy", "scikit-learn", "faiss-cpu", "timm", "open_clip_torch"),
    "pillow",  # decodes and resizes images
)
_OPTIONAL = ("transformers", "onnxruntime", "pyod")  # named only where they were loaded


@dataclass(frozen=True)
class RunOutcome:
    """The record in which a run ended, and what is printed above its numbers.

    Args:
        record: just made, or found.
        path: its file.
        status: written; skipped (the record existed); verified (it existed and was reproduced); or compared (the
            weights differ from the record's).
        notes: where the numbers come from, if this run did not make them.
        warnings: why they may not be what the user expects.
        scores: of each image, if this run computed them for all sets with one method.
    """

    record: ResultRecord
    path: Path
    status: Status
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    scores: tuple[SetScores, ...] = ()


@dataclass
class Clock:
    """Wall seconds per stage, exclusive: time inside a nested stage counts for that stage alone.

    Attributes:
        seconds: stage → seconds so far.
        peak_mib: stage → the process's peak resident memory in MiB when the stage last ended.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, int] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Attribute the time in the `with` block to `name`."""
        self._settle()
        self._stack.append(name)
        try:
            yield
        finally:
            self._settle()
            self._stack.pop()
            # File-backed pages of memory-mapped columns are counted too.
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, on macOS in bytes
            self.peak_mib[name] = peak >> (20 if sys.platform == "darwin" else 10)

    def _settle(self) -> None:
        now = time.perf_counter()
        if self._stack:
            top = self._stack[-1]
            self.seconds[top] = self.seconds.get(top, 0.0) + now - self._since
        self._since = now


def provenance(clock: Clock, device: "torch.device", passes: int) -> dict[str, Any]:
    """Return package version, git state, library versions, device, processor, UTC time, seconds and memory per stage.

    Args:
        clock: the run's stages.
        device: where the network ran.
        passes: images pushed through the network by this run; 0 if everything was cached.
    """
    import torch

    return {
        "openbench": openbench.__version__,
        "git_sha": commit(),
        # Only what can move a number: code, configs and manifests.
        "git_dirty": dirty(),
        "python": platform.python_version(),
        "libraries": {name: found for name in _libraries() if (found := _version(name))},
        "device": _device(device),
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "utc": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "seconds": {stage: round(seconds, 4) for stage, seconds in sorted(clock.seconds.items())},
        "peak_mib": dict(sorted(clock.peak_mib.items())),
        "passes": passes,
    }


def _libraries() -> tuple[str, ...]:
    return (*_LIBRARIES, *(name for name in _OPTIONAL if name in sys.modules))


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(device: "torch.device") -> str:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"


@cache
def _processor() -> str:
    """The model of the processor: different models sum in different orders, and so round differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


@dataclass(frozen=True, eq=False)
class Learnt:
    """How weights that were not released came about.

    Args:
        training: as users type it.
        outliers: what it learnt from besides the ID images; None for nothing.
        method: the training itself.
        reused: version, commit and time of the training; empty if the weights are new.
    """

    training: str
    outliers: "Split | None" = None
    method: "TrainingMethod | None" = None
    reused: str = ""


def describe_backbone(backbone: "Backbone", learnt: Learnt | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backbone's part of a record; a fitted head, augmentation and outliers only if there are any.

    Args:
        backbone: with weights.
        learnt: how they were trained; None for released weights.
        config: the scientific nodes, of which `training` is read.
    """
    described = {
        "name": backbone.name,
        "digest": backbone.digest,
        "weights_sha256": backbone.weights_sha256,
        "num_classes": backbone.num_classes,
        "feature_dim": backbone.feature_dim,
        "preprocess": asdict(backbone.preprocess),
        "training": None if learnt is None else learnt.training,
        **({} if backbone.fitted_head is None else {"head": dict(backbone.fitted_head)}),
    }
    return described if learnt is None else described | named(learnt, config)


def named(learnt: Learnt, config: Mapping[str, Any]) -> dict[str, str]:
    """Return what a record names besides the training: the augmentation as typed and the outliers, if any."""
    from openbench.data.build import outliers_name

    augment, outliers = config.get("training", {}).get(AUGMENT), learnt.outliers
    found = {} if outliers is None else {"outliers": outliers_name(outliers), "outliers_digest": outliers.digest}
    return {"augment": augment, **found} if augment else found


def remarks(whose: str, scores: Sequence[SetScores], said: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of a record's provenance that warns of all-equal or infinite scores; empty if there are none.

    Args:
        whose: what gave the scores, e.g. `method 'knn'`.
        scores: of all splits; none of a streaming method.
        said: what was to be warned of before there were scores.
    """
    pooled = np.concatenate([split.scores for split in scores]) if scores else np.empty(0)
    if len(pooled) and (pooled == pooled[0]).all():
        found = [
            f"WARNING: {whose} gives all {len(pooled):,} images of all sets the score {pooled[0]:g}: nothing "
            "is ranked by it, so AUROC is 50 whatever the images show"
        ]
    else:
        found = [text for split in scores if (text := _of_set(whose, split))]
    return {WARNINGS: [*said, *found]} if said or found else {}


def turned(whose: str, scores: Sequence[SetScores], values: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line that asks about the sign of scores whose AUROC is far below one half in every OOD set."""
    found = [values[s.name]["auroc"] for s in scores if s.role in ("near", "far") and "auroc" in values[s.name]]
    if not found or max(found) >= _TURNED:
        return ()
    most = f"{100 * max(found):.4g}"
    return (f"WARNING: {whose}: AUROC is {most} at most: is a larger score more OOD? Else turn the sign of all scores",)


def _of_set(whose: str, split: SetScores) -> str:
    where, found = f"{split.role} {split.name}", split.scores
    infinite = int(np.isinf(found).sum())
    if len(found) > 1 and (found == found[0]).all():
        return f"WARNING: {whose} gives all {len(found):,} images of {where} the score {found[0]:g}"
    if infinite:
        return (
            f"WARNING: {whose}: {infinite:,} of {len(found):,} scores of {where} are infinite, which makes "
            "these images equal in every ranking"
        )
    return ""


def reused(record: ResultRecord, path: Path, records: RecordStore) -> RunOutcome:
    """Return the outcome of a run whose record exists; version, commit and time of the record are logged (DEBUG).

    Args:
        record: the record that was found; its run id says that it was made from the same sources.
        path: its file.
        records: where it was found.
    """
    logger.debug(f"record {record.run_id}: {made_by(record)}")
    first = "reused: nothing was computed (runtime.on_existing=verify computes again and compares)"
    return RunOutcome(record, path, "skipped", (first, *_made_from(record, records)))


def made_from(record: ResultRecord, records: RecordStore) -> tuple[str, ...]:
    """Return notes on a record just made: what it reused from before this process, and its code if not committed.

    Version, commit and time of what it reused are logged (DEBUG).

    Args:
        record: just made.
        records: where the others of its setting are.
    """
    before = []
    for name, maker in (record.provenance.get(REUSED) or {}).items():
        logger.debug(f"reused {name}: {maker}")
        if _time_of(maker) < _STARTED:
            before.append(name)
    return (*([f"reused {' and '.join(before)} of an earlier run"] if before else []), *_made_from(record, records))


def _time_of(maker: str) -> datetime:
    """The time in `openbench 0.1.0, commit 1a2b, 2026-01-01T…`, perhaps with more after it; the earliest if none."""
    try:
        return datetime.fromisoformat(maker.split(", ")[2].split(" ")[0].removesuffix(";"))
    except (IndexError, ValueError):
        return datetime.min.replace(tzinfo=UTC)


def _made_from(record: ResultRecord, records: RecordStore) -> tuple[str, ...]:
    """A line for each special thing about the code of a record; none for openbench's committed code."""
    sources, changed = record.provenance.get(SOURCES) or {}, record.provenance.get(UNCOMMITTED) or {}
    unknown = unknown_sources(sources)
    edited = changed_since_loaded(sources)
    known = [name for name in sources if name not in (*unknown, VARIANT) and not name.startswith("openbench.")]
    lines = [f"made from uncommitted changes in {', '.join(changed)}: reused only by the same sources"] * bool(changed)
    lines += [f"made from sources that are not openbench's: {', '.join(known)}"] * bool(known)
    lines += [f"{name} has no file to read: what it makes is never reused" for name in unknown]
    lines += [
        f"{name}: the code that ran is not that of its file (edited or replaced since it was loaded)" for name in edited
    ]
    if VARIANT in sources:
        lines.append(_OTHER_METHOD)
    if (record.provenance.get(PROBE) or {}).get("variant"):
        lines.append(_VARIANT)
    supersedes, by = superseding(record, records)
    lines += [f"supersedes {one}" for one in supersedes]
    return (*lines, *([by] if by else []))
