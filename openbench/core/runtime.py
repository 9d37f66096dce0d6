"""How a run is carried out: devices, folders, batch sizes, policies. None of this enters a digest."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge

from openbench import paths
from openbench.config.constraints import Checked, Count
from openbench.errors import ConfigError, check_known

OnExisting = Literal["skip", "verify", "error"]
TrainPolicy = Literal["auto", "never", "force"]


def under_torchrun() -> bool:
    """Return whether `torchrun` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@dataclass(frozen=True)
class Sharding:
    """The share of this job in a pass.

    Args:
        count: number of jobs.
        first: 0 … count − 1, the part of the images with which this job begins.
    """

    count: int = 1
    first: int = 0


@dataclass(frozen=True)
class Runtime(Checked):
    """How a run is carried out.

    Args:
        device: `auto` (CUDA, else MPS, else CPU), or a torch device string.
        batch_size: images per forward pass.
        score_batch: rows per call of a method's `score`.
        workers: processes or threads that decode images while the network runs; 0 decodes in the main process.
        cache: features, scores and checkpoints; null = `OPENBENCH_CACHE` or the user's cache folder.
        results: records and tables; null = `OPENBENCH_RESULTS` or `./results`.
        on_existing: what to do when the record exists: skip, error, or verify (recompute and compare); none of these
            writes a record.
        train: whether a missing backbone is trained first (auto), is an error (never), or is trained again (force).
        progress: whether long stages report how far they are.
        tensorboard: whether training writes events for TensorBoard beside its curve.
        shards: into how many parts `extract` divides the images of each set among jobs; null = the processes of
            torchrun, else one.
        shard: with which of them this job begins; null = its number under torchrun, else 0.
    """

    named: ClassVar[str] = "runtime"

    device: str = "auto"
    batch_size: Count = 256
    score_batch: Count = 8192
    workers: Annotated[int, Ge(0)] = 0
    cache: Path | None = None
    results: Path | None = None
    on_existing: OnExisting = "skip"
    train: TrainPolicy = "auto"
    progress: bool = True
    tensorboard: bool = False
    shards: Count | None = None
    shard: Annotated[int, Ge(0)] | None = None

    def __post_init__(self) -> None:
        """Resolve the folders."""
        for name, default in (("cache", paths.cache_dir), ("results", paths.results_dir)):
            given = getattr(self, name)
            folder = paths.writable(Path(given).expanduser(), f"runtime.{name}") if given else default()
            object.__setattr__(self, name, folder)

    @classmethod
    def from_config(cls, node: Mapping[str, Any]) -> "Runtime":
        """Build from the `runtime` node; keys that are the launcher's are refused here like any other unknown key."""
        check_known(node, [f.name for f in fields(cls)], "runtime")
        return cls(**node)

    @property
    def sharding(self) -> Sharding:
        """How `extract` divides its work.

        Raises:
            ConfigError: there is no such shard, or there are fewer than processes of torchrun.
        """
        joined = under_torchrun()
        size = int(os.environ["WORLD_SIZE"]) if joined else 1
        count = self.shards or size
        if self.shard is None and count < size:
            raise ConfigError(f"runtime.shards is {count}, and torchrun started {size} processes — leave it out")
        first = self.shard if self.shard is not None else int(os.environ["RANK"]) if joined else 0
        if first >= count:
            raise ConfigError(f"runtime.shard is {first} — allowed: 0 to {count - 1}, as runtime.shards is {count}")
        return Sharding(count, first)

    @property
    def own_device(self) -> str:
        """The device of this process: under torchrun each has a GPU of its own."""
        if self.device in ("auto", "cuda") and under_torchrun() and torch.cuda.is_available():
            return f"cuda:{os.environ['LOCAL_RANK']}"
        return self.device

    @property
    def features(self) -> Path:
        """Where cached columns live."""
        return self._cache / "features"

    @property
    def scores(self) -> Path:
        """Where per-sample scores live."""
        return self._cache / "scores"

    @property
    def checkpoints(self) -> Path:
        """Where trained weights live."""
        return self._cache / "checkpoints"

    @property
    def heads(self) -> Path:
        """Where heads fitted on cached features live."""
        return self._cache / "heads"

    @property
    def records(self) -> Path:
        """The results folder."""
        return Path(self.results)  # type: ignore[arg-type]

    @property
    def _cache(self) -> Path:
        return Path(self.cache)  # type: ignore[arg-type]
