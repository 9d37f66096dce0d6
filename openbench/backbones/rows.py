"""Backbones without a network: features that were computed elsewhere, and the columns of a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openbench.backbones.base import Backbone, HeadKind, Outputs
from openbench.backbones.checkpoints import find_file
from openbench.core.benchmark import RowItems, Split
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request, Role
from openbench.digest import digest
from openbench.errors import ConfigError, DataError, NotApplicableError, did_you_mean, listed
from openbench.storage.array_file import arrays_digest, open_arrays

FEATURES, LOGITS, NAMES, LABELS = "features", "logits", "names", "labels"
_GROUPS = (Role.NEAR, Role.FAR, Role.CSID)
AS_THEY_ARE = Preprocess(resize=1, crop=1, mean=(0.0,), std=(1.0,), interpolation="nearest")


class Rows(Backbone):
    """Passes rows on as features, with the logits that the rows bring or that a linear head makes of them.

    There are no images, so there are neither maps nor gradients. The first `feature_dim` numbers of a row are its
    features, `logits` further ones its logits.
    """

    layers = ()
    has_network = False

    def __init__(self, name: str, feature_dim: int, *, logits: int = 0, head: Head | None = None) -> None:
        """Say what a row holds.

        Args:
            name: how it is called in records.
            feature_dim: d.
            logits: c, if rows bring logits; 0 = they are computed with `head`, or there are none.
            head: the linear classifier, if it is known.
        """
        self.name, self.feature_dim = name, feature_dim
        self.num_classes = logits or (0 if head is None else head.num_classes)
        self.classifies = self.num_classes > 0
        self.has_head = head is not None
        self.preprocess = AS_THEY_ARE
        self.columns, self._logits = feature_dim + logits, logits
        self._head = head or Head(torch.zeros(0, feature_dim), torch.zeros(0))
        self.device = torch.device("cpu")
        self.architecture = f"rows of {feature_dim} features and {logits} logits"
        weights = [part.numpy() for part in (self._head.weight, self._head.bias)] if self.has_head else []
        self.weights_sha256 = digest(weights, length=64) if weights else ""
        self.digest = digest({"architecture": self.architecture, "head": weights})

    @property
    def head(self) -> Head:
        """The classifier; with zero classes where it is not known."""
        return self._head

    def to(self, device: torch.device) -> Self:
        """Make outputs on another device; return self."""
        self.device = device
        return self

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what rows (n, d + c) hold.

        Raises:
            DataError: rows of another length.
            NotApplicableError: the method wants maps or an input step, which need a network.
        """
        if request.layers or request.perturb is not None:
            lack = f"backbone '{self.name}' has neither maps nor gradients"
            raise NotApplicableError(f"{lack} — choose a method that reads features or logits")
        if images.shape[1] != self.columns:
            raise DataError(f"backbone '{self.name}' takes rows of {self.columns} numbers, found {images.shape[1]}")
        rows = images.to(self.device)
        features = rows[:, : self.feature_dim]
        if self._logits:
            return Outputs(rows[:, self.feature_dim :], features, {})
        return Outputs(self._head(features) if self.has_head else features[:, :0], features, {})


class Identity(Rows):
    """Features are the columns of a table; there is one class and no classifier, so its only logit is 0."""

    has_network = True

    def __init__(self, name: str, preprocess: Preprocess, columns: int | None) -> None:
        """Take the number of columns from the benchmark.

        Args:
            name: what users type after `backbone=`.
            preprocess: the benchmark's; rows of a table are passed as they are.
            columns: numbers in an item, None if items are images.

        Raises:
            ConfigError: items are images.
        """
        if columns is None:
            raise ConfigError(f"backbone '{name}' passes vectors on, the benchmark has images — choose a network")
        super().__init__(name, columns, head=Head(torch.zeros(1, columns), torch.zeros(1)))
        self.preprocess, self.classifies = preprocess, False
        self.architecture, self.weights_sha256 = f"identity of {columns} columns", ""
        self.digest = digest({"architecture": self.architecture})

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return the vectors (n, d) as features, and count them."""
        self.passes += len(images)
        return super().outputs(images, request)

    def module(self) -> nn.Module:
        """Nothing to train."""
        return nn.Identity()


class FeatureFile(Rows):
    """The rows of a file, set by set; the file's content enters the digest.

    The arrays are named by role and, in a group, by set: `id_train/features`, `near/cifar100/features` (n, d); beside
    each, optionally, `logits` (n, c), `names` (n,) and `labels` (n,); once, optionally, `head/weight` (c, d) and
    `head/bias` (c,).
    """

    def __init__(self, name: str, path: str | None = None) -> None:
        """Open a file.

        Args:
            name: how it is called in records, e.g. the network that made the features.
            path: an `.npz`, or a folder of `.npy` files; absolute, or below the working folder or a data root.

        Raises:
            ConfigError: no path.
            DataError: nothing is there, it cannot be read, or its arrays do not fit together.
        """
        if path is None:
            how = "backbone.path=FILE.npz (python -m openbench show backbone features describes it)"
            raise ConfigError(f"backbone '{name}' needs a file with features: {how}")
        self.path = file = find_file(path, f"backbone '{name}': path", DataError)
        self._arrays = open_arrays(file)
        self._sets = [key.removesuffix(f"/{FEATURES}") for key in self._arrays if key.endswith(f"/{FEATURES}")]
        features = [self._arrays[f"{where}/{FEATURES}"] for where in self._sets]
        logits = [self._arrays[key] for where in self._sets if (key := f"{where}/{LOGITS}") in self._arrays]
        rows = [len(array) for array in logits] in ([], [len(array) for array in features])
        if not (features and rows and _alike(features) and _alike(logits)):
            shapes = [f"`{key}` {array.dtype} {array.shape}" for key, array in self._arrays.items()]
            needed = "numbers, `id_test/features` (n, d) for each set and, for all or none, `id_test/logits` (n, c)"
            raise DataError(f"'{file}': found {listed(shapes, most=8) or 'nothing'} — needed are {needed}")
        d, c = features[0].shape[1], logits[0].shape[1] if logits else 0
        super().__init__(name, d, logits=c, head=head_in(file, d, c) if "head/weight" in self._arrays else None)
        self.digest = digest({"rows": self.digest, "file": arrays_digest(file)})

    def items_of(self, split: Split) -> RowItems:
        """Return the rows of a split, in the order of its images.

        Args:
            split: of a benchmark, with the names of its images.

        Raises:
            DataError: the file does not have the set, or not its images.
        """
        where = f"{split.role}/{split.name}" if split.role in _GROUPS else str(split.role)
        array, logits, names, labels = (
            self._arrays.get(f"{where}/{part}") for part in (FEATURES, LOGITS, NAMES, LABELS)
        )
        if array is None:
            hint = f"{did_you_mean(where, self._sets)} (found features of {', '.join(self._sets)})"
            way = f"add them, or leave the set out: ~benchmark.{where.replace('/', '.')}"
            raise DataError(f"'{self.path}' has no `{where}/{FEATURES}`{hint} — {way}")
        count, rows = len(array), None
        if names is not None:
            row_of = {str(name): row for row, name in enumerate(np.asarray(names).tolist())}
            missing = [key for key in split.keys if key not in row_of]
            if missing or len(row_of) != count:
                lacks = f"lacks {len(missing):,} of the set's {len(split):,} images, {_few(missing)}"
                found = f"has {len(row_of):,} different names for {count:,} rows, {_few(list(row_of))}, and {lacks}"
                raise DataError(f"'{self.path}': `{where}/{NAMES}` {found} — name each row as the manifest does")
            rows = np.array([row_of[key] for key in split.keys], dtype=np.int64)
        elif count != len(split):
            found = f"'{self.path}': `{where}/{FEATURES}` has {count:,} rows for {len(split):,} images"
            raise DataError(f"{found} — give one for each image of its manifest, in order, or `{where}/{NAMES}`")
        chosen = slice(None) if rows is None else rows
        if labels is not None and split.role.is_id and not np.array_equal(np.asarray(labels)[chosen], split.labels):
            way = "give names for rows in another order, or leave out labels that are only numbered otherwise"
            raise DataError(f"'{self.path}': `{where}/{LABELS}` differ from the benchmark's — {way}")
        return RowItems((array,) if logits is None else (array, logits), rows)


def features(name: str, path: str | None = None) -> FeatureFile:
    """Return `FeatureFile(name, path)`; configs and records have this function's name."""
    return FeatureFile(name, path)


class ArrayFeatures(Rows):
    """The features, and perhaps logits, that a benchmark has in place of images; see `data.own.features`."""

    def __init__(self, name: str, columns: int | None, logits: int = 0, head: str | None = None) -> None:
        """Take the number of columns from the benchmark.

        Args:
            name: how it is called in records, e.g. the network that made the features.
            columns: numbers in an item of the benchmark, None if items are images.
            logits: how many of them, the last ones, are logits.
            head: `linear_probe`, `nearest_mean` or `knn`, fitted on the training features; the path of an `.npz` with a
                linear classifier; or None.

        Raises:
            ConfigError: items are images, or have no more columns than there are logits.
            DataError: no classifier in the file.
        """
        if columns is None or columns <= logits:
            has = "images" if columns is None else f"{columns} columns, {logits} of them logits"
            raise ConfigError(f"backbone '{name}' passes features on, the benchmark has {has} — see `data new --help`")
        kind, linear = next((k for k in get_args(HeadKind) if k == head), None), None
        if head is not None and kind is None:
            path = find_file(head, f"backbone '{name}': head", DataError)
            linear = head_in(path, columns - logits)
            if linear is None:
                raise DataError(f"'{path}' has no array `weight` (c, {columns - logits}) — write it with `bias` (c,)")
        super().__init__(name, columns - logits, logits=logits, head=linear)
        self.head_to_fit = kind


def head_in(path: Path, d: int, c: int = 0) -> Head | None:
    """Return the linear classifier in an `.npz` or a folder of `.npy` files; None if it has none.

    Args:
        path: of the arrays `weight` (c, d) and, unless it is 0, `bias` (c,), alone or as `head/weight`, `head/bias`.
        d: number of features.
        c: number of classes; 0 = any.

    Raises:
        DataError: arrays of other shapes.
    """
    arrays = open_arrays(path)
    weight, bias = (arrays.get(f"head/{part}", arrays.get(part)) for part in ("weight", "bias"))
    if weight is None:
        return None
    bias = np.zeros(len(weight), np.float32) if bias is None else bias
    if weight.shape != (c or len(weight), d) or bias.shape != weight.shape[:1]:
        shape = f"({c or 'c'}, {d}) and ({c or 'c'},)"
        raise DataError(f"'{path}': head/weight {weight.shape} and head/bias {bias.shape} — allowed: {shape}")
    return Head(*(torch.from_numpy(np.array(part, dtype=np.float32)) for part in (weight, bias)))


def _alike(arrays: Sequence[NDArray[Any]]) -> bool:
    """Whether arrays are numbers (n, k) of one k."""
    numbers = all(array.ndim == 2 and array.dtype.kind in "fiu" and array.size for array in arrays)
    return numbers and len({array.shape[1] for array in arrays}) < 2


def _few(names: Sequence[Any]) -> str:
    return listed(f"'{name}'" for name in names) or "nothing"
