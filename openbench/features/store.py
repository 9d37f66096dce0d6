"""The columnar cache of features: one pass per image and network, shared by all methods and all jobs."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from openbench import __version__
from openbench.backbones.base import Backbone
from openbench.checkout import made_now, uncommitted
from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.request import Field, Request
from openbench.data.decoded_cache import packed
from openbench.digest import digest
from openbench.errors import CacheError, NotApplicableError
from openbench.features.arrays import ColumnFile, ColumnWriter, Flushed, load_progress, save_progress, writing
from openbench.features.columns import Column, kept_of, read_by, separated
from openbench.features.extract import NamedRows, extract, rest_of
from openbench.features.live import column_of, score_rows
from openbench.features.progress import reporting
from openbench.say import Say, silent
from openbench.source import foreign_sources

_SHARD_SECONDS = 15.0


@dataclass
class FeatureStore:
    """Columns of splits under `<root>/<backbone.digest>/<split.digest>/<column>.npy`.

    Only the two digests and the column's name select a file, so only they may influence its content. Where code that
    openbench does not ship makes the backbone, its sources enter the first digest. Several processes may share a root,
    also over a network file system with POSIX locks.

    Args:
        root: the cache folder, created when something is written.
        batch_size: images per forward pass.
        workers: decode images while the network runs.
        progress: whether long passes are reported on stderr.
        shard: a pass is flushed to disk after this many images, or after 15 seconds if that is sooner.
        say: receives a line where damage is computed again, images are decoded, or another job is waited for.
    """

    root: Path
    batch_size: int = 256
    workers: int = 0
    progress: bool = True
    shard: int = 4096
    say: Say = silent

    def get(self, backbone: Backbone, split: Split, request: Request) -> FeatureSet:
        """Return the columns that `request` names, memory-mapped, computing in a single pass those that are missing.

        Features of a perturbed input take a second pass. Features and logits are always extracted together. A damaged
        column is reported and computed again.

        Raises:
            CheckpointError: the backbone has no weights.
            NotApplicableError: logits of a backbone without a classifier.
            CacheError: the folder cannot be written.
            DataError: an image cannot be read, or an output is not finite.
            FieldError: maps without layers or layers without maps; the same of moved features and their step.
        """
        request, beside = separated(request)
        moved = {} if beside is None else {Field.MOVED: self.get(backbone, split, beside).features}
        if backbone.features_from is not None and request.perturb is None:
            found = self._with_logits(backbone, backbone.features_from, split, request)
            return replace(found, columns={**found.columns, **moved})
        wanted = read_by(request)
        if Field.LOGITS in request.fields and not backbone.num_classes:
            raise NotApplicableError(f"backbone '{backbone.name}' has no classifier, so no logits — read features")
        folder = self._folder(backbone, split)
        self._ensure(folder, backbone, split, self._extraction(backbone, request))
        tensors = {column: ColumnFile(folder, column.name).open() for column in wanted}
        columns: dict[Field, Tensor] = {c.field: tensor for c, tensor in tensors.items() if c.field != Field.MAPS}
        if Field.LABELS in request.fields:
            columns[Field.LABELS] = torch.from_numpy(split.labels.copy())
        return FeatureSet(columns | moved, {c.layer: tensor for c, tensor in tensors.items() if c.field == Field.MAPS})

    def _with_logits(self, backbone: Backbone, network: Backbone, split: Split, request: Request) -> FeatureSet:
        """The columns of a network, and the logits that a head fitted on its features makes of them."""
        found = self.get(network, split, replace(request, fields=request.fields - {Field.LOGITS} | {Field.FEATURES}))
        if Field.LOGITS not in request.fields:
            return found
        name, folder = str(Field.LOGITS), self._folder(backbone, split)

        def rows(rest: Split, names: tuple[str, ...]) -> Iterator[NamedRows]:
            start = len(split) - len(rest)
            for part in range(start, len(split), self.shard):
                features = found.features[part : part + self.shard].to(backbone.device)
                yield {name: backbone.classify(features).cpu().numpy()}

        self._ensure(folder, backbone, split, _Source((name,), (name,), rows))
        return replace(found, columns={**found.columns, Field.LOGITS: ColumnFile(folder, name).open()})

    def scores(self, backbone: Backbone, split: Split, method: LiveMethod) -> Tensor:
        """Return the scores (n,) float32 of a split by a fitted live method, made now if they are not cached.

        Raises:
            NotFittedError: there is something to fit, and the engine has not.
            MethodError: a score is NaN, or there is not one per image.
            CacheError, CheckpointError, DataError: as for columns.
        """
        name, folder = column_of(method), self._folder(backbone, split, "openbench.features.live")

        def rows(rest: Split, names: tuple[str, ...]) -> Iterator[NamedRows]:
            return score_rows(method, backbone, rest, self.batch_size, self.workers)

        self._ensure(folder, backbone, split, _Source((name,), (name,), rows))
        return ColumnFile(folder, name).open()

    def missing(self, backbone: Backbone, split: Split, request: Request) -> tuple[Column, ...]:
        """Return the columns that passes for `request` would have to compute."""
        backbone = backbone.features_from or backbone
        folder = self._folder(backbone, split)
        columns = [c for part in separated(request) if part is not None for c in kept_of(backbone, part)]
        missing = _faulty(folder, split, [column.name for column in columns])
        return tuple(column for column in columns if column.name in missing)

    def made(self, backbone: Backbone, split: Split) -> str:
        """Return by which version, commit and when the cached features of a split were made."""
        return ColumnFile(self._folder(backbone.features_from or backbone, split), str(Field.FEATURES)).made()

    def _folder(self, backbone: Backbone, split: Split, made_by: str = "openbench.features.extract") -> Path:
        """The two digests name it; code that openbench does not ship, or that is not committed, enters the first.

        Args:
            backbone: the network.
            split: its images.
            made_by: the module that makes the columns, with all that it imports.
        """
        sources = foreign_sources(backbone)
        changed = uncommitted(made_by, parts=(backbone, split.source))
        made_from = {key: files for key, files in (("sources", sources), ("uncommitted", changed)) if files}
        network = digest({"backbone": backbone.digest, **made_from}) if made_from else backbone.digest
        return self.root / network / split.digest

    def _extraction(self, backbone: Backbone, request: Request) -> "_Source":
        kept = {column.name: column for column in kept_of(backbone, request)}
        read = tuple(column.name for column in read_by(request))

        def rows(rest: Split, names: tuple[str, ...]) -> Iterator[NamedRows]:
            columns = tuple(kept[name] for name in names)
            for found in extract(backbone, rest, columns, self.batch_size, self.workers):
                yield {column.name: array for column, array in found.items()}

        return _Source(read, tuple(sorted(kept, key=read.__contains__)), rows)

    def _ensure(self, folder: Path, backbone: Backbone, split: Split, source: "_Source") -> None:
        if not _faulty(folder, split, source.read):
            return
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with self._only_writer(folder, split):
            # Another job may have computed them while this one waited.
            missing = _faulty(folder, split, source.kept)
            for name in missing:
                file = ColumnFile(folder, name)
                if file.array.exists():
                    self.say(f"cache: {file.fault(len(split))} in {folder} — computed again")
                    file.array.unlink()
            if missing:
                _Pass(self, folder, backbone, split, missing, source.rows).run()

    @contextmanager
    def _only_writer(self, folder: Path, split: Split) -> Iterator[None]:
        lock = FileLock(folder / ".lock")
        with writing(folder):
            (folder / ".lock").touch()
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self.say(f"features of {split.name}: another job computes them, waiting")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@dataclass(frozen=True)
class _Source:
    """Where columns come from.

    Args:
        read: names of the columns that are wanted.
        kept: names of the other columns that the same pass yields, and then of these: a killed job is resumed as long
            as one of these is missing.
        rows: makes a pass over some items for some names, batch by batch.
    """

    read: tuple[str, ...]
    kept: tuple[str, ...]
    rows: Callable[[Split, tuple[str, ...]], Iterator[NamedRows]]


def _faulty(folder: Path, split: Split, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if ColumnFile(folder, name).fault(len(split)) is not None)


@dataclass
class _Pass:
    """One extraction under the lock: resumes what an interrupted job left, appends, puts the columns in place."""

    store: FeatureStore
    folder: Path
    backbone: Backbone
    split: Split
    names: tuple[str, ...]
    rows: Callable[[Split, tuple[str, ...]], Iterator[NamedRows]]

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

    def _append(self, writers: dict[str, ColumnWriter], start: int, advance: Callable[[int], None]) -> None:
        unsafe, last = 0, time.monotonic()
        if start == len(self.split):
            return
        # Small files are decoded once for all backbones; the array lies beside the features.
        images = packed(self.split, self.store.root.parent / "images", self.store.workers, self.store.say)
        rest = rest_of(images, start)
        for rows in self.rows(rest, self.names):
            with writing(self.folder):
                for name, array in rows.items():
                    if name not in writers:
                        shape = (len(self.split), *array.shape[1:])
                        writers[name] = ColumnWriter(ColumnFile(self.folder, name), shape)
                    writers[name].append(array)
                count = len(next(iter(rows.values())))
                unsafe += count
                if unsafe >= self.store.shard or time.monotonic() - last >= _SHARD_SECONDS:
                    save_progress(self._progress, {name: writer.flush() for name, writer in writers.items()})
                    unsafe, last = 0, time.monotonic()
            advance(count)

    def _resumed(self) -> dict[str, ColumnWriter]:
        """Writers that continue an interrupted job; none if its columns differ or changed since it stopped."""
        noted = load_progress(self._progress)
        files = {name: ColumnFile(self.folder, name) for name in self.names}
        kept: dict[str, Flushed] = {}
        for name, file in files.items():
            state = noted.get(name)
            if state is None or state.shape[0] != len(self.split) or not state.intact(file):
                return {}
            kept[name] = state
        if len({state.rows for state in kept.values()}) != 1:
            return {}
        return {name: ColumnWriter(files[name], state.shape, state) for name, state in kept.items()}

    def _finish(self, writers: dict[str, ColumnWriter]) -> None:
        short = {name: w.rows for name, w in writers.items() if w.rows != len(self.split)}
        if short or len(writers) != len(self.names):
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
            "made": made_now(),
        }
        with writing(self.folder):
            digests = {name: writers[name].seal({"column": name, **about}) for name in self.names}
            *others, last = self.names
            for name in others:
                writers[name].put_in_place(digests[name])
            # Before the last column, without which the next job looks at what a killed one left here.
            self._progress.unlink(missing_ok=True)
            writers[last].put_in_place(digests[last])

    @property
    def _progress(self) -> Path:
        return self.folder / "progress.json"
