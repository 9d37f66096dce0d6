"""The columnar cache of features: one pass per image and network, shared by all methods and all jobs."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from openbench import __version__
from openbench.backbones.base import Backbone
from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet
from openbench.core.request import Field, Request
from openbench.data.packed import packed
from openbench.errors import CacheError
from openbench.features.arrays import ColumnFile, ColumnWriter, Flushed, load_progress, save_progress, writing
from openbench.features.columns import Column, extracted_with, read_by
from openbench.features.extract import extract, rest_of
from openbench.features.progress import reporting

_SHARD_SECONDS = 15.0
_log = logging.getLogger(__name__)


@dataclass
class FeatureStore:
    """Columns of splits under `<root>/<backbone.digest>/<split.digest>/<column>.npy`.

    Nothing but the two digests and the column's name selects a file, so nothing else may influence its content.
    Several processes may share a root, also over a network file system with POSIX locks.

    Args:
        root: the cache folder, created when something is written.
        batch_size: images per forward pass.
        workers: what decodes images beside the network.
        progress: whether long passes are reported on stderr.
        shard: images after which a pass is safe on disk at the latest; also after 15 seconds.
    """

    root: Path
    batch_size: int = 256
    workers: int = 0
    progress: bool = True
    shard: int = 4096

    def get(self, backbone: Backbone, split: Split, request: Request) -> FeatureSet:
        """Return the columns that `request` names, memory-mapped, computing in a single pass those that are missing.

        Features and logits are always extracted together. A damaged column is reported and computed again.

        Raises:
            CheckpointError: the backbone has no weights.
            CacheError: the folder cannot be written.
            DataError: an image cannot be read, or an output is not finite.
            FieldError: maps without layers or layers without maps.
        """
        wanted = read_by(request)
        folder = self.root / backbone.digest / split.digest
        self._ensure(folder, backbone, split, request)
        tensors = {column: ColumnFile(folder, column.name).open() for column in wanted}
        columns: dict[Field, Tensor] = {c.field: tensor for c, tensor in tensors.items() if c.field != Field.MAPS}
        if Field.LABELS in request.fields:
            columns[Field.LABELS] = torch.from_numpy(split.labels.copy())
        return FeatureSet(columns, {c.layer: tensor for c, tensor in tensors.items() if c.field == Field.MAPS})

    def missing(self, backbone: Backbone, split: Split, request: Request) -> tuple[Column, ...]:
        """Return the columns that a pass for `request` would have to compute."""
        folder = self.root / backbone.digest / split.digest
        return self._missing(folder, split, request)

    def _ensure(self, folder: Path, backbone: Backbone, split: Split, request: Request) -> None:
        if all(ColumnFile(folder, c.name).fault(len(split)) is None for c in read_by(request)):
            return
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with self._only_writer(folder, split):
            # Another job may have computed them while this one waited.
            missing = self._missing(folder, split, request)
            for column in missing:
                file = ColumnFile(folder, column.name)
                if file.array.exists():
                    _log.warning("cache: %s in %s — computed again", file.fault(len(split)), folder)
                    file.array.unlink()
            if missing:
                _Pass(self, folder, backbone, split, missing).run()

    def _missing(self, folder: Path, split: Split, request: Request) -> tuple[Column, ...]:
        wanted = extracted_with(request)
        return tuple(c for c in wanted if ColumnFile(folder, c.name).fault(len(split)) is not None)

    @contextmanager
    def _only_writer(self, folder: Path, split: Split) -> Iterator[None]:
        lock = FileLock(folder / ".lock")
        with writing(folder):
            (folder / ".lock").touch()
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if self.progress:
                print(f"features of {split.name}: another job computes them, waiting", file=sys.stderr, flush=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@dataclass
class _Pass:
    """One extraction under the lock: resumes what an interrupted job left, appends, puts the columns in place."""

    store: FeatureStore
    folder: Path
    backbone: Backbone
    split: Split
    columns: tuple[Column, ...]

    def run(self) -> None:
        """Extract all columns.

        Raises:
            DataError: see `extract`; what is on disk so far stays for the next attempt.
        """
        writers = self._resumed()
        start = next(iter(writers.values())).rows if writers else 0
        title = f"{self.backbone.name} on {self.split.name} ({self.split.role})"
        try:
            with reporting(title, len(self.split), done=start, show=self.store.progress) as advance:
                self._append(writers, start, advance)
            self._finish(writers)
        finally:
            for writer in writers.values():
                writer.close()

    def _append(self, writers: dict[Column, ColumnWriter], start: int, advance: Callable[[int], None]) -> None:
        unsafe, last = 0, time.monotonic()
        if start == len(self.split):
            return
        # Small files are decoded once for all backbones; the array lies beside the features.
        images = packed(self.split, self.store.root.parent / "images", self.store.workers)
        rest = rest_of(images, start)
        for rows in extract(self.backbone, rest, self.columns, self.store.batch_size, self.store.workers):
            with writing(self.folder):
                for column, array in rows.items():
                    if column not in writers:
                        shape = (len(self.split), *array.shape[1:])
                        writers[column] = ColumnWriter(ColumnFile(self.folder, column.name), shape)
                    writers[column].append(array)
                count = len(next(iter(rows.values())))
                unsafe += count
                if unsafe >= self.store.shard or time.monotonic() - last >= _SHARD_SECONDS:
                    save_progress(self._progress, {c.name: writer.flush() for c, writer in writers.items()})
                    unsafe, last = 0, time.monotonic()
            advance(count)

    def _resumed(self) -> dict[Column, ColumnWriter]:
        """Writers that go on where an interrupted job was; none if its columns are others or not as it left them."""
        noted = load_progress(self._progress)
        files = {column: ColumnFile(self.folder, column.name) for column in self.columns}
        kept: dict[Column, Flushed] = {}
        for column, file in files.items():
            state = noted.get(column.name)
            if state is None or state.shape[0] != len(self.split) or not state.intact(file):
                return {}
            kept[column] = state
        if len({state.rows for state in kept.values()}) != 1:
            return {}
        return {column: ColumnWriter(files[column], state.shape, state) for column, state in kept.items()}

    def _finish(self, writers: dict[Column, ColumnWriter]) -> None:
        short = {c.name: w.rows for c, w in writers.items() if w.rows != len(self.split)}
        if short or len(writers) != len(self.columns):
            raise CacheError(
                f"split '{self.split.name}': {short or 'no'} rows were extracted — {len(self.split)} expected — "
                "the loader lost images; nothing was cached"
            )
        about = {
            "backbone": self.backbone.name,
            "architecture": self.backbone.architecture,
            "split": self.split.name,
            "role": str(self.split.role),
            "package": __version__,
        }
        with writing(self.folder):
            for column, writer in writers.items():
                writer.finish({"column": column.name, **about})
            self._progress.unlink(missing_ok=True)

    @property
    def _progress(self) -> Path:
        return self.folder / "progress.json"
