"""The provenance of records (code, machine, time, network), and the notes and warnings of a run."""

import logging
import platform
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import openbench
from openbench.config.overrides import AUGMENT
from openbench.core.record import PROBE, REUSED, SOURCES, UNCOMMITTED, VARIANT, ResultRecord
from openbench.core.scores import SetScores
from openbench.results.frame import superseding
from openbench.results.records.origin import made_by
from openbench.results.records.store import RecordStore
from openbench.source import changed_since_loaded, commit, dirty, installed, unknown_sources

if TYPE_CHECKING:  # without torch, so that the metrics of a file of scores are there at once
    import torch

    from openbench.backbones.base import Backbone
    from openbench.core.benchmark import Split
    from openbench.training.base import TrainingMethod

logger = logging.getLogger(__name__)
Status = Literal["written", "skipped", "verified", "compared"]
WARNINGS = "warnings"  # key of a record's provenance: warnings about scores and memory
_TURNED = 0.4  # an AUROC below this in every set suggests that scores have the wrong sign
_VARIANT = (
    "a network of the same class, sources, weights and preprocessing gave other outputs for the same images before: "
    "something else that it or its preprocess reads has changed, so it counts as another network"
)
_OTHER_METHOD = (
    "a method of the same sources and hyper-parameters gave other scores for the same rows before: something else that "
    "it reads has changed, so it counts as another method"
)
_STARTED = datetime.now(UTC).isoformat(timespec="seconds")  # of this process
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+")  # in UTC
_LIBRARIES = (
    *("torch", "torchvision", "numpy", "scipy", "scikit-learn", "faiss-cpu", "timm", "open_clip_torch"),
    "pillow",  # decodes and resizes images
)
# Named only where they were loaded.
_OPTIONAL = ("transformers", "onnxruntime", "pyod", "pytorch_ood", "openood", "oodeel")


@dataclass(frozen=True)
class RunOutcome:
    """The record of a run, and the lines that are printed above its numbers.

    Args:
        record: new or existing.
        path: its file.
        status: written; skipped (the record existed); verified (it existed and was reproduced); or compared (the
            weights differ from the record's).
        notes: on the code and the cached data that the numbers come from.
        warnings: reasons why they may not be what the user expects.
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
    _nested: float = 0.0  # of the stage that is under way

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Attribute the time in the `with` block to `name`."""
        outer, self._nested, start = self._nested, 0.0, time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - self._nested
            self._nested = outer + spent
            # File-backed pages of memory-mapped columns are counted too.
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB, on macOS in bytes
            self.peak_mib[name] = peak >> (20 if sys.platform == "darwin" else 10)


def made_here() -> dict[str, Any]:
    """Return package version, git state (of code, configs and manifests, which can move a number) and UTC time."""
    utc = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"openbench": openbench.__version__, "git_sha": commit(), "git_dirty": dirty(), "utc": utc}


def provenance(clock: Clock, device: "torch.device", passes: int) -> dict[str, Any]:
    """Return package version, git state, library versions, device, processor, UTC time, seconds and memory per stage.

    Args:
        clock: the run's stages.
        device: where the network ran.
        passes: images pushed through the network by this run; 0 if everything was cached.
    """
    import torch

    names = (*_LIBRARIES, *(name for name in _OPTIONAL if name in sys.modules))
    cuda = device.type == "cuda"
    return {
        **made_here(),
        "python": platform.python_version(),
        "libraries": {name: found for name in names if (found := installed(name))},
        "device": torch.cuda.get_device_name(device) if cuda else f"{device.type} ({platform.machine()})",
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "seconds": {stage: round(seconds, 4) for stage, seconds in sorted(clock.seconds.items())},
        "peak_mib": dict(sorted(clock.peak_mib.items())),
        "passes": passes,
    }


@cache
def _processor() -> str:
    """The model of the processor; models differ in the order of sums, and so in rounding."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


@dataclass(frozen=True, eq=False)
class TrainingInfo:
    """The training of a network's weights.

    Args:
        name: as users type it; None for released weights.
        outliers: that it used; None for none.
        method: the training method.
        reused: version, commit and time of the training; empty if the weights are new.
    """

    name: str | None = None
    outliers: "Split | None" = None
    method: "TrainingMethod | None" = None
    reused: str = ""


def describe_backbone(backbone: "Backbone", training: TrainingInfo, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the backbone's part of a record; a fitted head, augmentation and outliers only if there are any.

    Args:
        backbone: with weights.
        training: of these weights.
        config: the scientific nodes, of which `training` is read.
    """
    described = {
        "name": backbone.name,
        "digest": backbone.digest,
        "weights_sha256": backbone.weights_sha256,
        "num_classes": backbone.num_classes,
        "feature_dim": backbone.feature_dim,
        "preprocess": asdict(backbone.preprocess),
        "training": training.name,
    }
    if backbone.fitted_head is not None:
        described["head"] = dict(backbone.fitted_head)
    if training.name is None:
        return described
    if augment := config.get("training", {}).get(AUGMENT):
        described["augment"] = augment
    if training.outliers is not None:
        from openbench.data.build import outliers_name

        described["outliers"] = outliers_name(training.outliers)
        described["outliers_digest"] = training.outliers.digest
    return described


def score_warnings(source: str, scores: Sequence[SetScores]) -> list[str]:
    """Return warnings of all-equal or infinite scores.

    Args:
        source: of the scores, e.g. `method 'knn'`.
        scores: of all splits; none of a streaming method.
    """
    sets = [(f"{split.role} {split.name}", split.scores) for split in scores]
    pooled = np.concatenate([values for _, values in sets]) if sets else np.empty(0)
    nothing = ""
    if len(pooled) and (pooled == pooled[0]).all():
        sets, nothing = [("all sets", pooled)], ": nothing is ranked by it, so AUROC is 50 whatever the images show"
    warnings = []
    for where, values in sets:
        infinite = int(np.isinf(values).sum())
        if len(values) > 1 and (values == values[0]).all():
            warnings.append(
                f"WARNING: {source} gives all {len(values):,} images of {where} the score {values[0]:g}{nothing}"
            )
        elif infinite:
            warnings.append(
                f"WARNING: {source}: {infinite:,} of {len(values):,} scores of {where} are infinite, which makes these "
                "images equal in every ranking"
            )
    return warnings


def sign_warning(source: str, scores: Sequence[SetScores], values: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a line that asks about the sign of scores whose AUROC is far below one half in every OOD set."""
    aurocs = [values[s.name]["auroc"] for s in scores if s.role in ("near", "far") and "auroc" in values[s.name]]
    if not aurocs or max(aurocs) >= _TURNED:
        return ()
    most = f"{100 * max(aurocs):.4g}"
    return (
        f"WARNING: {source}: AUROC is {most} at most: is a larger score more OOD? Else turn the sign of all scores",
    )


def reused_outcome(record: ResultRecord, path: Path, records: RecordStore) -> RunOutcome:
    """Return the outcome of a run whose record exists; its version, commit and time are logged (DEBUG).

    Args:
        record: its run id says that it was made from the same sources.
        path: its file.
        records: the store that has it.
    """
    logger.debug(f"record {record.run_id}: {made_by(record)}")
    first = "reused: nothing was computed (runtime.on_existing=verify computes again and compares)"
    return RunOutcome(record, path, "skipped", (first, *_code_notes(record, records)))


def record_notes(record: ResultRecord, records: RecordStore) -> tuple[str, ...]:
    """Return notes on a new record: what it reused from before this process, and its code if not committed.

    Version, commit and time of reused features and weights are logged (DEBUG).

    Args:
        record: just made.
        records: the store with the other records of its setting.
    """
    before = []
    for name, origin in (record.provenance.get(REUSED) or {}).items():
        logger.debug(f"reused {name}: {origin}")
        made = _TIME.search(origin)
        if made is None or made[0] < _STARTED:
            before.append(name)
    return (*([f"reused {' and '.join(before)} of an earlier run"] if before else []), *_code_notes(record, records))


def _code_notes(record: ResultRecord, records: RecordStore) -> tuple[str, ...]:
    """Return a line for each special fact about the code of a record; none for openbench's committed code."""
    sources, changed = record.provenance.get(SOURCES) or {}, record.provenance.get(UNCOMMITTED) or {}
    unknown = unknown_sources(sources)
    edited = changed_since_loaded(sources)
    foreign = [name for name in sources if name not in (*unknown, VARIANT) and not name.startswith("openbench.")]
    lines = [f"made from uncommitted changes in {', '.join(changed)}: reused only by the same sources"] * bool(changed)
    lines += [f"made from sources that are not openbench's: {', '.join(foreign)}"] * bool(foreign)
    lines += [f"{name} has no file to read, so its results are never reused" for name in unknown]
    lines += [f"{name} was edited or replaced since it was loaded: the old code ran" for name in edited]
    if VARIANT in sources:
        lines.append(_OTHER_METHOD)
    if (record.provenance.get(PROBE) or {}).get("variant"):
        lines.append(_VARIANT)
    supersedes, by = superseding(record, records)
    lines += [f"supersedes {one}" for one in supersedes]
    return (*lines, *([by] if by else []))
