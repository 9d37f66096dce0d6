"""The columnar cache of features: one pass per image and network, shared by all methods and all jobs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.checkout import uncommitted
from openbench.core.benchmark import Split
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.request import Field, Request, Texts
from openbench.digest import digest
from openbench.errors import NotApplicableError
from openbench.features.arrays import ColumnFile, writing
from openbench.features.columns import Column, kept_of, read_by, separated
from openbench.features.corrupted import corrupted
from openbench.features.extract import NamedRows, extract
from openbench.features.live import column_of, score_rows
from openbench.features.passes import How, Pass, Source, faulty
from openbench.features.portions import Portions
from openbench.features.shards import WHOLE, Sharding, Shards
from openbench.features.spent import Spent
from openbench.features.texts import text_embeddings
from openbench.say import Say, silent
from openbench.source import foreign_sources
from openbench.storage.locks import only_one


@dataclass
class FeatureStore:
    """Columns of splits under `<root>/<backbone.digest>/<split.digest>/<column>.npy`.

    Only the two digests and the column's name select a file, so only they may influence its content. Where code that
    openbench does not ship makes the backbone, its sources enter the first digest. Several processes may share a root,
    also over a network file system; see `storage.locks`.

    Args:
        root: the cache folder, created when something is written.
        batch_size: images per forward pass.
        workers: decode images while the network runs.
        progress: whether long passes are reported on stderr.
        shard: a pass is flushed to disk after this many images, or after 15 seconds if that is sooner.
        sharding: into how many parts a pass is divided among jobs.
        say: receives a line where damage is computed again, images are decoded, or another job is waited for.
    """

    root: Path
    batch_size: int = 256
    workers: int = 0
    progress: bool = True
    shard: int = 4096
    sharding: Sharding = WHOLE
    say: Say = silent

    def __post_init__(self) -> None:
        """Begin with whole batches, and to count seconds."""
        self.portions, self.spent = Portions(self.say), Spent()

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
            found = self._with_logits(backbone, backbone.features_from, split, request)
            return replace(found, columns={**found.columns, **perturbed})
        wanted = read_by(request)
        if Field.LOGITS in request.fields and not backbone.num_classes:
            raise NotApplicableError(f"backbone '{backbone.name}' has no classifier, so no logits — read features")
        folder = self._folder(backbone, split)
        self._ensure(folder, backbone, split, self._extraction(backbone, request))
        tensors = {column: ColumnFile(folder, column.name).open() for column in wanted}
        columns: dict[Field, Tensor] = {c.field: tensor for c, tensor in tensors.items() if c.field != Field.MAPS}
        if Field.LABELS in request.fields:
            columns[Field.LABELS] = torch.from_numpy(split.labels.copy())
        return FeatureSet(
            columns | perturbed, {c.layer: tensor for c, tensor in tensors.items() if c.field == Field.MAPS}
        )

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

        self._ensure(folder, backbone, split, Source((name,), (name,), rows, divisible=False))
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
            return score_rows(method, backbone, rest, self.batch_size, self.workers, portions=self.portions)

        self._ensure(folder, backbone, split, Source((name,), (name,), rows))
        return ColumnFile(folder, name).open()

    def texts(self, backbone: Backbone, texts: Texts) -> Tensor:
        """Return the unit embeddings (m, d) float32 of a corpus by the backbone's text tower, memory-mapped.

        Raises:
            NotApplicableError: the backbone has no such tower.
            DataError: no such list of words.
            CacheError: as for columns.
        """
        return text_embeddings(self.root, backbone, texts, self.say, self.progress)

    def missing(self, backbone: Backbone, split: Split, request: Request) -> tuple[Column, ...]:
        """Return the columns that passes for `request` would have to compute."""
        backbone = backbone.features_from or backbone
        folder = self._folder(backbone, split)
        columns = [c for part in separated(request) if part is not None for c in kept_of(backbone, part)]
        missing = faulty(folder, len(split), [column.name for column in columns])
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
        changed = uncommitted(made_by, parts=(backbone, split.source, type(split.items)))
        made_from = {key: files for key, files in (("sources", sources), ("uncommitted", changed)) if files}
        network = digest({"backbone": backbone.digest, **made_from}) if made_from else backbone.digest
        return self.root / network / split.digest

    def _extraction(self, backbone: Backbone, request: Request) -> Source:
        kept = {column.name: column for column in kept_of(backbone, request)}
        read = tuple(column.name for column in read_by(request))

        def rows(rest: Split, names: tuple[str, ...]) -> Iterator[NamedRows]:
            columns = tuple(kept[name] for name in names)
            batch = self.batch_size, self.workers
            for found in extract(backbone, rest, columns, *batch, portions=self.portions, spent=self.spent):
                yield {column.name: array for column, array in found.items()}

        return Source(read, tuple(sorted(kept, key=read.__contains__)), rows)

    def share(self, backbone: Backbone, split: Split, request: Request) -> int:
        """Make the shards of what `request` names that nobody makes, and return how many others are still making.

        Raises:
            As `get` does.
        """
        if request.corruption is not None:
            copies = corrupted(split, request.corruption, backbone.preprocess)
            return self.share(backbone, copies, replace(request, corruption=None))
        backbone, left = backbone.features_from or backbone, 0
        for part in separated(request):
            if part is not None:
                source = self._extraction(backbone, part)
                left = max(left, self._ensure(self._folder(backbone, split), backbone, split, source, wait=False))
        return left

    def _ensure(self, folder: Path, backbone: Backbone, split: Split, source: Source, wait: bool = True) -> int:
        """Have columns made; return how many shards other jobs are still making, which is none after waiting."""
        if not faulty(folder, len(split), source.read):
            Shards.delete_left(folder, split, source.kept)
            return 0
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        shards = self._shards(folder, split, source.kept) if source.divisible else None
        if shards and (left := shards.make(backbone, source, self._how, self.sharding.first, wait)):
            return left
        with self._only_writer(folder, split):
            # Another job may have computed them while this one waited.
            missing = faulty(folder, len(split), source.kept)
            for name in missing:
                file = ColumnFile(folder, name)
                if file.array.exists():
                    self.say(f"cache: {file.fault(len(split))} in {folder} — computed again")
                    file.array.unlink()
            if missing and shards:
                shards.join(backbone, missing)
            elif missing:
                Pass(self._how, folder, backbone, split, missing, source.rows).run()
        return 0

    def _shards(self, folder: Path, split: Split, names: Sequence[str]) -> Shards | None:
        """The shards of a pass: as many as this job is told, or those that others work on."""
        if self.sharding.count > 1:
            return Shards.planned(folder, split, names, self.sharding.count, self.batch_size)
        return Shards.under_way(folder, split, names)

    @property
    def _how(self) -> How:
        return How(self.shard, self.workers, self.progress, self.root.parent / "images", self.say, self.spent)

    @contextmanager
    def _only_writer(self, folder: Path, split: Split) -> Iterator[None]:
        with writing(folder):
            (folder / ".lock").touch()
        with only_one(folder / ".lock", f"features of {split.name}: another job computes them", self.say):
            yield
