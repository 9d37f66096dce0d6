"""One pass divided among jobs: whoever is free takes the next shard, and whoever ends last joins them.

A shard is a run of whole batches, so that any number of shards passes the same batches through the network, and the
columns have the same bytes. It is made like a column of its own, in a folder below that of the column: it appears whole
or not at all, and a killed job is resumed. A file lock says who works on it; it ends with its process. Whoever joins
the shards takes the plan away first: without it, what is missing of a shard is in the columns already.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Split
from openbench.digest import digest
from openbench.errors import CacheError
from openbench.features.arrays import ColumnFile, ColumnWriter, check_room, writing
from openbench.features.extract import part_of
from openbench.features.passes import How, Pass, Source, about, faulty
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed
from openbench.storage.locks import held, wait_for

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
    """The shards of one pass.

    Args:
        folder: of the columns.
        split: all images.
        names: of the columns that each shard holds; passes for others have shards of their own.
        borders: [start, stop) of each shard.
    """

    folder: Path
    split: Split
    names: tuple[str, ...]
    borders: tuple[tuple[int, int], ...]

    @classmethod
    def planned(cls, folder: Path, split: Split, names: Sequence[str], count: int, batch_size: int) -> "Shards | None":
        """The shards that other jobs work on already, or as many as are wanted; None if all columns are there.

        Args:
            folder: of the columns.
            split: all images.
            names: of the columns.
            count: how many; fewer where there are fewer batches.
            batch_size: images per forward pass.
        """
        if found := cls.under_way(folder, split, names):
            return found
        with writing(folder), FileLock(folder / ".shards.lock"):
            if found := cls.under_way(folder, split, names):
                return found
            if not faulty(folder, len(split), names):  # others have joined theirs meanwhile
                return None
            batches = -(-len(split) // batch_size)
            each = -(-batches // count) * batch_size
            borders = tuple((start, min(start + each, len(split))) for start in range(0, len(split), each))
            write_sealed(_place(folder, names) / PLAN, json.dumps(borders).encode())
        return cls(folder, split, tuple(names), borders)

    @classmethod
    def under_way(cls, folder: Path, split: Split, names: Sequence[str]) -> "Shards | None":
        """The shards that jobs work on, or were killed in; None if there are none."""
        try:
            noted = json.loads(read_sealed(_place(folder, names) / PLAN))
            borders = tuple((int(start), int(stop)) for start, stop in noted)
        except (FileNotFoundError, DamagedError, ValueError, TypeError):  # the last two: of another version
            return None
        ends = (0, *(stop for _, stop in borders))
        whole = ends[-1] == len(split) and all(start == end for (start, _), end in zip(borders, ends, strict=False))
        return cls(folder, split, tuple(names), borders) if whole else None

    @classmethod
    def delete_left(cls, folder: Path, split: Split, names: Sequence[str]) -> None:
        """Delete shards that a killed job left although nothing is missing any more, unless other jobs work there.

        Args:
            folder: of the columns.
            split: all images.
            names: of columns; their shards are deleted if the columns are whole, those of others if they have no plan
                and no job is at one of them.
        """
        if not (folder / FOLDER).exists():
            return
        own = cls(folder, split, tuple(names), ())
        with (
            suppress(OSError, Timeout),
            FileLock(folder / ".lock", timeout=0),
            FileLock(folder / ".shards.lock", timeout=0),
        ):
            if own._place.exists() and not faulty(folder, len(split), names):
                own.delete()
            for place in (folder / FOLDER).glob("*"):
                # Of a killed job, or of one that lives, whose version has its plan elsewhere.
                if not (place / PLAN).exists() and not any(map(held, place.rglob(".lock"))):
                    shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # there are shards of another pass
                (folder / FOLDER).rmdir()

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
        left, passed = [*range(begin, len(self.borders)), *range(begin)], -1
        while left and backbone.passes != passed:  # others may have made theirs while this job made one
            passed = backbone.passes
            left = [at for at in left if not self._made(at, backbone, source, how, blocking=False)]
        if left and wait:
            shards = f"{len(left)} of {len(self.borders)} shards"
            wait_for(f"features of {self.split.name}: other jobs make {shards}", how.say)
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
            self.delete()

    def delete(self) -> None:
        """Delete the shards. Their plan goes first: whoever looks at them meanwhile finds nothing to make."""
        (self._place / PLAN).unlink(missing_ok=True)
        shutil.rmtree(self._place, ignore_errors=True)
        with suppress(OSError):  # there are shards of another pass
            (self.folder / FOLDER).rmdir()

    def _join(self, whole: ColumnFile, parts: Sequence[ColumnFile], backbone: Backbone) -> None:
        writer: ColumnWriter | None = None
        try:
            for part, (start, stop) in zip(parts, self.borders, strict=True):
                if fault := part.fault(stop - start):
                    raise CacheError(f"feature cache: {fault} in '{part.folder}' — give the same command again")
                rows = np.load(part.array, mmap_mode="r", allow_pickle=False)
                if writer is None:
                    shape = (len(self.split), *rows.shape[1:])
                    whole.growing.unlink(missing_ok=True)  # what a killed job left takes room
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
        if not self._missing(at):
            return True
        folder, (start, stop) = self._folder(at), self.borders[at]
        lock = FileLock(folder / ".lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=-1 if blocking else 0)
        except Timeout:
            return False
        except OSError:
            if not self._missing(at):
                return True  # joined meanwhile, and the folders are gone
            with writing(folder):
                raise
        try:
            if missing := self._missing(at):
                title = (
                    f"{backbone.name} on {self.split.name} ({self.split.role}), shard {at + 1} of {len(self.borders)}"
                )
                part = part_of(self.split, start, stop)
                Pass(replace(how, images=None), folder, backbone, part, missing, source.rows, title).run()
        finally:
            lock.release()
        return True

    def _missing(self, at: int) -> tuple[str, ...]:
        """The columns that are still to be made of a shard; none once all shards have been joined."""
        start, stop = self.borders[at]
        missing = faulty(self._folder(at), stop - start, self.names)
        return missing if (self._place / PLAN).exists() else ()

    @property
    def _place(self) -> Path:
        return _place(self.folder, self.names)

    def _folder(self, at: int) -> Path:
        return self._place / "{}-{}".format(*self.borders[at])


def _place(folder: Path, names: Sequence[str]) -> Path:
    """Where the shards of some columns lie, and their plan."""
    return folder / FOLDER / digest(sorted(names))
