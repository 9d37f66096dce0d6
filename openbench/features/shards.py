"""One pass divided among jobs: whoever is free takes the next shard, and whoever ends last joins them.

A shard is a run of whole batches, so that any number of shards passes the same batches through the network, and the
columns have the same bytes. It is made like a column of its own, in a folder below that of the column: it appears whole
or not at all, and a killed job is resumed. A file lock says who works on it; it ends with its process.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Split
from openbench.errors import CacheError
from openbench.features.arrays import ColumnFile, ColumnWriter, check_room, writing
from openbench.features.extract import part_of
from openbench.features.passes import How, Pass, Source, about, faulty
from openbench.storage.sealed import DamagedError, read_sealed, write_sealed

_ROWS = 4096  # joined at a time
FOLDER, PLAN = "shards", "plan.json"


@dataclass(frozen=True)
class Sharding:
    """How many shards there are, and with which of them this job begins.

    Args:
        count: of shards; one is the whole.
        first: 0 … count − 1.
    """

    count: int = 1
    first: int = 0


WHOLE = Sharding()


@dataclass(frozen=True)
class Shards:
    """The shards of one split and network.

    Args:
        folder: of the columns.
        split: all images.
        borders: [start, stop) of each shard.
    """

    folder: Path
    split: Split
    borders: tuple[tuple[int, int], ...]

    @classmethod
    def planned(cls, folder: Path, split: Split, count: int, batch_size: int) -> "Shards":
        """The shards that other jobs work on already, or as many as are wanted.

        Args:
            folder: of the columns.
            split: all images.
            count: how many; fewer where there are fewer batches.
            batch_size: images per forward pass.
        """
        if found := cls.under_way(folder, split):
            return found
        with writing(folder), FileLock(folder / ".shards.lock"):
            if found := cls.under_way(folder, split):
                return found
            batches = -(-len(split) // batch_size)
            each = -(-batches // count) * batch_size
            borders = tuple((start, min(start + each, len(split))) for start in range(0, len(split), each))
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
            write_sealed(folder / FOLDER / PLAN, json.dumps(borders).encode())
        return cls(folder, split, borders)

    @classmethod
    def under_way(cls, folder: Path, split: Split) -> "Shards | None":
        """The shards that jobs work on, or were killed in; None if there are none."""
        try:
            noted = json.loads(read_sealed(folder / FOLDER / PLAN))
        except (FileNotFoundError, DamagedError):
            return None
        borders = tuple((int(start), int(stop)) for start, stop in noted)
        ends = (0, *(stop for _, stop in borders))
        whole = ends[-1] == len(split) and all(start == end for (start, _), end in zip(borders, ends, strict=False))
        return cls(folder, split, borders) if whole else None

    def make(self, backbone: Backbone, source: Source, how: How, first: int, wait: bool) -> int:
        """Make the shards that nobody makes, and return how many are still being made by others.

        Args:
            backbone: with weights.
            source: of the columns.
            how: what does not change a number.
            first: where to begin.
            wait: whether to wait for those that others make, and to make them if these are killed.
        """
        begin = first % len(self.borders)
        left = [at for at in (*range(begin, len(self.borders)), *range(begin)) if self._missing(at, source.kept)]
        left = [at for at in left if not self._made(at, backbone, source, how, blocking=False)]
        if left and wait:
            shards = f"{len(left)} of {len(self.borders)} shards"
            how.say(f"features of {self.split.name}: other jobs make {shards}, waiting")
            for at in left:
                self._made(at, backbone, source, how, blocking=True)
            return 0
        return len(left)

    def join(self, backbone: Backbone, names: Sequence[str]) -> None:
        """Put the columns in place, made of all shards in their order. The caller holds the lock of the columns.

        Raises:
            CacheError: a shard is missing or damaged.
        """
        parts = [self._folder(at) for at in range(len(self.borders))]
        with writing(self.folder):
            for name in names:
                self._join(ColumnFile(self.folder, name), [ColumnFile(part, name) for part in parts], backbone)
            for part in parts:
                for name in names:
                    ColumnFile(part, name).remove()
            if not any(list(part.glob("*.npy*")) for part in parts):
                shutil.rmtree(self.folder / FOLDER, ignore_errors=True)

    def _join(self, whole: ColumnFile, parts: Sequence[ColumnFile], backbone: Backbone) -> None:
        writer: ColumnWriter | None = None
        try:
            for part, (start, stop) in zip(parts, self.borders, strict=True):
                if fault := part.fault(stop - start):
                    raise CacheError(f"feature cache: {fault} in '{part.folder}' — give the same command again")
                rows = np.load(part.array, mmap_mode="r", allow_pickle=False)
                if writer is None:
                    shape = (len(self.split), *rows.shape[1:])
                    check_room(whole, shape, rows.dtype.str)
                    writer = ColumnWriter(whole, shape, dtype=rows.dtype.str)
                for at in range(0, len(rows), _ROWS):
                    writer.append(rows[at : at + _ROWS])
            if writer is not None:
                writer.finish({"column": whole.name, **about(backbone, self.split)})
        finally:
            if writer is not None:
                writer.close()

    def _made(self, at: int, backbone: Backbone, source: Source, how: How, *, blocking: bool) -> bool:
        """Make a shard unless another job does; return whether it is there."""
        folder, (start, stop) = self._folder(at), self.borders[at]
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=-1 if blocking else 0)
        except Timeout:
            return False
        try:
            if missing := self._missing(at, source.kept):
                title = (
                    f"{backbone.name} on {self.split.name} ({self.split.role}), shard {at + 1} of {len(self.borders)}"
                )
                part = part_of(self.split, start, stop)
                Pass(replace(how, images=None), folder, backbone, part, missing, source.rows, title).run()
        finally:
            lock.release()
        return True

    def _missing(self, at: int, names: Sequence[str]) -> tuple[str, ...]:
        start, stop = self.borders[at]
        return faulty(self._folder(at), stop - start, names)

    def _folder(self, at: int) -> Path:
        return self.folder / FOLDER / "{}-{}".format(*self.borders[at])
