"""The columnar cache of features: one pass per image and network, shared by all methods and jobs."""

import logging
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from openbench import __version__
from openbench.backbones.base import Backbone
from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet
from openbench.core.method import LiveMethod
from openbench.core.request import Field, Request, Texts
from openbench.core.runtime import Sharding
from openbench.digest import digest
from openbench.errors import CacheError, NotApplicableError
from openbench.features._arrays import ColumnFile, NamedRows, cached, faulty, write_columns, writing
from openbench.features.changed_images import corrupted
from openbench.features.columns import Column, columns_of_pass, read_by, separated
from openbench.features.extract import BatchHalving, column_of, extract, score_rows, select
from openbench.features.texts import text_embeddings
from openbench.progress import Report
from openbench.source import code_digests, made_now
from openbench.storage.checksum import DAMAGED
from openbench.storage.files import delete_old, only_one, replacing

logger = logging.getLogger(__name__)

PORTIONS = "portions"  # the folder of their files
_PORTION = 1024  # images; at least a batch
_AT_ONCE = 4096  # rows that a fitted head classifies
Names = tuple[str, ...]  # of columns
RowsOf = Callable[[Split, Names], Iterator[NamedRows]]  # a pass over some images for some columns


@dataclass(frozen=True)
class Portions:
    """The portions of a pass over a split, of whole batches, so that results do not depend on who makes them.

    A process locks the portion that it works on; the lock ends with the process.

    Args:
        folder: of the columns.
        split: all images.
        names: of the columns; passes for other columns have separate portions.
        size: images of a portion.
    """

    folder: Path
    split: Split
    names: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        return -(-len(self.split) // self.size)

    def border(self, at: int) -> tuple[int, int]:
        """Return the first row of a portion, and the end of its rows."""
        return at * self.size, min((at + 1) * self.size, len(self.split))

    def lock(self, at: int, timeout: float) -> FileLock:
        """Return the lock of portion `at`; `timeout` is in seconds, −1 waits without end.

        Raises:
            CacheError: the folder cannot be written.
        """
        with writing(self.folder):
            self._subfolder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._file(at).with_suffix(".lock"), timeout=timeout)

    def missing(self, at: int) -> bool:
        """Whether a portion is still to be made; none is once the columns are complete."""
        return not self._file(at).exists() and bool(faulty(self.folder, len(self.split), self.names))

    def write(self, at: int, parts: Iterator[NamedRows], report: Report) -> None:
        """Write a portion.

        Args:
            at: which.
            parts: consecutive rows from its first one on, whole batches; no more are taken than it needs.
            report: is told the number of rows of each part.

        Raises:
            CacheError: the folder cannot be written or has no room.
        """
        start, stop = self.border(at)
        portion: list[NamedRows] = []
        rows = 0
        while rows < stop - start:
            portion.append(next(parts))
            count = len(portion[-1][self.names[0]])
            rows += count
            report.advance(count)
        with writing(self.folder), replacing(self._file(at)) as stream:
            columns: Any = {name: np.concatenate([part[name] for part in portion]) for name in self.names}
            np.savez(stream, **columns)

    def join(self, about: dict[str, Any]) -> None:
        """Write the columns from all portions in their order; the caller holds the lock of the columns.

        Raises:
            CacheError: a portion is damaged, or the folder cannot be written.
        """
        write_columns(self.folder, len(self.split), map(self._read, range(len(self))), about)
        shutil.rmtree(self._subfolder, ignore_errors=True)
        delete_old(self._subfolder.parent, "*")  # of killed jobs for other columns
        with suppress(OSError):
            self._subfolder.parent.rmdir()

    def _read(self, at: int) -> NamedRows:
        file = self._file(at)
        try:
            with np.load(file, allow_pickle=False) as pack:  # which compares the checksums of its members
                return {name: pack[name] for name in self.names}
        except (*DAMAGED, zipfile.BadZipFile) as error:
            file.unlink(missing_ok=True)
            raise CacheError(f"feature cache: '{file}' is damaged ({error}) — give the same command again") from error

    @property
    def _subfolder(self) -> Path:
        return self.folder / PORTIONS / digest(sorted(self.names))

    def _file(self, at: int) -> Path:
        return self._subfolder / "{}-{}.npz".format(*self.border(at))


@dataclass
class FeatureStore:
    """Columns of splits under `<root>/<backbone.digest>/<split.digest>/<column>.npy`.

    Only the two digests and the column's name select a file, so only they may influence its content. Code that is
    foreign or not committed enters the first digest. Several processes may share a root.

    Args:
        root: the cache folder, created with the first file.
        batch_size: images per forward pass.
        workers: decode images while the network runs.
        progress: whether long passes are reported on stderr.
        portion: images per portion of a pass that is written to disk, rounded to whole batches.
        sharding: the jobs that share a pass.
    """

    root: Path
    batch_size: int = 256
    workers: int = 0
    progress: bool = True
    portion: int = _PORTION
    sharding: Sharding = field(default_factory=Sharding)

    def __post_init__(self) -> None:
        """Begin with whole batches, and remember the digests of code for the life of the store."""
        self.halving = BatchHalving(self.batch_size, self.workers)
        self._code: dict[tuple[object, ...], tuple[dict[str, dict[str, str]], object]] = {}

    def get(self, backbone: Backbone, split: Split, request: Request) -> FeatureSet:
        """Return the columns that `request` names, memory-mapped, computing in a single pass those that are missing.

        Features of a perturbed or corrupted input take a second pass. Features and logits are always extracted
        together. A damaged column is reported and computed again.

        Raises:
            CheckpointError: the backbone has no weights.
            NotApplicableError: logits of a backbone without a classifier.
            CacheError: the folder cannot be written.
            DataError: an image cannot be read, or an output is not finite.
            FieldError: maps without layers or layers without maps; the same of perturbed features and their step.
        """
        if request.corruption is not None:
            copies = corrupted(split, request.corruption, backbone.preprocess)
            return self.get(backbone, copies, replace(request, corruption=None))
        request, second = separated(request)
        perturbed = {} if second is None else {Field.PERTURBED: self.get(backbone, split, second).features}
        if backbone.features_from is not None and request.perturb is None:
            x = self._with_logits(backbone, backbone.features_from, split, request)
            return replace(x, columns={**x.columns, **perturbed})
        read = read_by(request)
        if Field.LOGITS in request.fields and not backbone.num_classes:
            raise NotApplicableError(f"backbone '{backbone.name}' has no classifier, so no logits — read features")
        folder = self._folder(backbone, split)
        self._extract(backbone, split, request)
        tensors = {column: ColumnFile(folder, column.name).open() for column in read}
        columns: dict[Field, Tensor] = {c.field: tensor for c, tensor in tensors.items() if c.field != Field.MAPS}
        if Field.LABELS in request.fields:
            columns[Field.LABELS] = torch.from_numpy(split.labels.copy())
        maps = {c.layer: tensor for c, tensor in tensors.items() if c.field == Field.MAPS}
        return FeatureSet(columns | perturbed, maps)

    def _with_logits(self, backbone: Backbone, network: Backbone, split: Split, request: Request) -> FeatureSet:
        """Return the columns of a network, and the logits of a head that was fitted on its features."""
        x = self.get(network, split, replace(request, fields=request.fields - {Field.LOGITS} | {Field.FEATURES}))
        if Field.LOGITS not in request.fields:
            return x
        file = ColumnFile(self._folder(backbone, split), str(Field.LOGITS))

        def parts() -> Iterator[NamedRows]:
            for start in range(0, len(split), _AT_ONCE):
                features = x.features[start : start + _AT_ONCE].to(backbone.device)
                yield {file.name: backbone.classify(features).cpu().numpy()}

        logits = cached(file, len(split), parts(), _about(backbone, split))
        return replace(x, columns={**x.columns, Field.LOGITS: logits})

    def scores(self, backbone: Backbone, split: Split, method: LiveMethod) -> Tensor:
        """Return the scores (n,) float32 of a split by a fitted live method, computed now if they are not cached.

        Raises:
            NotFittedError: the method has to be fitted first.
            MethodError: a score is NaN, or there is not one per image.
            CacheError, CheckpointError, DataError: as for columns.
        """
        name = column_of(method)

        def rows(images: Split, names: tuple[str, ...]) -> Iterator[NamedRows]:
            return score_rows(method, backbone, images, self.halving)

        return self.rows(backbone, split, name, rows)

    def rows(self, backbone: Backbone, split: Split, name: str, rows: RowsOf) -> Tensor:
        """Return a column of a split (n, …), memory-mapped, computed now if it is not cached.

        Args:
            backbone: with weights.
            split: the images.
            name: of the column; only network, images and name may influence its values.
            rows: makes a pass over some images.

        Raises:
            CacheError: the folder cannot be written.
        """
        self._ensure(backbone, split, (name,), (name,), rows)
        return ColumnFile(self._folder(backbone, split), name).open()

    def texts(self, backbone: Backbone, texts: Texts) -> Tensor:
        """Return the unit embeddings (m, d) float32 of a corpus by the backbone's text tower, memory-mapped.

        Raises:
            NotApplicableError: the backbone has no such tower.
            DataError: no such list of words.
            CacheError: as for columns.
        """
        return text_embeddings(self.root, backbone, texts, self.progress)

    def missing(self, backbone: Backbone, split: Split, request: Request) -> tuple[Column, ...]:
        """Return the columns that passes for `request` would have to compute."""
        backbone = backbone.features_from or backbone
        folder = self._folder(backbone, split)
        columns = [c for part in separated(request) if part is not None for c in columns_of_pass(backbone, part)]
        missing = faulty(folder, len(split), [column.name for column in columns])
        return tuple(column for column in columns if column.name in missing)

    def origin(self, backbone: Backbone, split: Split) -> str:
        """Return version, commit and time of the cached features of a split."""
        return ColumnFile(self._folder(backbone.features_from or backbone, split), str(Field.FEATURES)).origin()

    def share(self, backbone: Backbone, split: Split, request: Request) -> int:
        """Compute the portions of columns that no other job computes; return how many others are still computing.

        Raises:
            As `get` does.
        """
        if request.corruption is not None:
            copies = corrupted(split, request.corruption, backbone.preprocess)
            return self.share(backbone, copies, replace(request, corruption=None))
        backbone = backbone.features_from or backbone
        parts = [part for part in separated(request) if part is not None]
        return max(self._extract(backbone, split, part, wait=False) for part in parts)

    def _folder(self, backbone: Backbone, split: Split) -> Path:
        data = (split.source, type(split.items))
        key = (id(backbone), *map(id, data))
        if key not in self._code:  # with the objects, so that no others get their ids
            code = code_digests("openbench.features.extract", backbone, data=data)
            self._code[key] = code, (backbone, data)
        code, _ = self._code[key]
        network = digest({"backbone": backbone.digest, **code}) if code else backbone.digest
        return self.root / network / split.digest

    def _extract(self, backbone: Backbone, split: Split, request: Request, wait: bool = True) -> int:
        """Compute the columns of outputs that a request reads, and the others of the same pass."""
        yielded = {column.name: column for column in columns_of_pass(backbone, request)}

        def rows(images: Split, names: tuple[str, ...]) -> Iterator[NamedRows]:
            return extract(backbone, images, tuple(yielded[name] for name in names), self.halving)

        read = tuple(column.name for column in read_by(request))
        return self._ensure(backbone, split, read, tuple(yielded), rows, wait=wait)

    def _ensure(
        self, backbone: Backbone, split: Split, read: Names, yielded: Names, rows: RowsOf, *, wait: bool = True
    ) -> int:
        """Compute columns unless those that are read are complete.

        Args:
            backbone: with weights.
            split: the images.
            read: names of the columns to read.
            yielded: names of all columns of the pass.
            rows: makes the pass.
            wait: whether to wait for portions of other jobs, and to compute them if these are killed.

        Returns:
            How many portions other jobs are still computing; none after waiting.
        """
        folder = self._folder(backbone, split)
        if not faulty(folder, len(split), read):
            return 0
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".lock").touch()
        missing = faulty(folder, len(split), yielded)
        for name in missing:
            if (file := ColumnFile(folder, name)).array.exists():
                logger.info(f"cache: {file.fault(len(split))} in {folder} — computed again")
        portion = -(-self.portion // self.batch_size) * self.batch_size
        portions = Portions(folder, split, missing, portion)
        if self.sharding.count > 1 and (left := self._make(portions, backbone, rows, wait)):
            return left
        with only_one(folder / ".lock", f"features of {split.name}: another job computes them"):
            self._make(portions, backbone, rows, wait=True)
            if faulty(folder, len(split), missing):  # else another job has written them meanwhile
                portions.join(_about(backbone, split))
        return 0

    def _make(self, portions: Portions, backbone: Backbone, rows: RowsOf, wait: bool) -> int:
        """Compute the portions that no other job computes; return how many others are still computing."""
        first = self.sharding.first * len(portions) // self.sharding.count
        order = [at for at in (*range(first, len(portions)), *range(first)) if portions.missing(at)]
        if not order:
            return 0
        split = portions.split
        title = f"{backbone.name} on {split.name} ({split.role})"
        done = len(split) - sum(stop - start for start, stop in map(portions.border, order))
        batches: Iterator[NamedRows] = iter(())
        following = -1  # the portion whose rows `batches` yields next
        with Report(title, len(split), done=done, show=self.progress) as report:
            for timeout in (0, -1) if wait else (0,):
                left = [at for at in order if portions.missing(at)]
                if timeout and left:
                    jobs = f"other jobs make {len(left)} of {len(portions)} portions"
                    logger.info(f"features of {split.name}: {jobs}, waiting")
                for at in left:
                    with suppress(Timeout), portions.lock(at, timeout):
                        if portions.missing(at):
                            if at != following:
                                batches = rows(select(split, range(portions.border(at)[0], len(split))), portions.names)
                            portions.write(at, batches, report)
                            following = at + 1
        return sum(map(portions.missing, order))


def _about(backbone: Backbone, split: Split) -> dict[str, str]:
    """Return the facts in a column's sidecar that are for human readers."""
    of = {"backbone": backbone.name, "architecture": backbone.architecture, "split": split.name}
    return of | {"role": str(split.role), "package": __version__, "made": made_now()}
