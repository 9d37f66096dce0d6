"""What a network makes of images that lie in memory: for fitting a method, and for scoring one batch in one pass."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench import paths
from openbench.backbones.base import Backbone, Outputs
from openbench.core.benchmark import Image, Split
from openbench.core.composite import Composite
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Field, Mixing, Request, Texts
from openbench.data.sources.transforms import normalise, prepared, stack
from openbench.errors import MethodError
from openbench.features.changed_images import MIXED_READ, corrupted, mixed
from openbench.features.columns import Column, kept_of, read_by, separated
from openbench.features.extract import extract, score_rows
from openbench.features.texts import text_embeddings
from openbench.metrics.conformal.prediction_sets import prediction_sets
from openbench.metrics.curve import Floats

if TYPE_CHECKING:
    from pandas import DataFrame


_BASE = frozenset({Field.FEATURES, Field.LOGITS})
_PLAIN = Request(fields=_BASE)


@dataclass(eq=False)
class MemoryFeatures:
    """Columns of splits, extracted when they are asked for and kept in memory: a `FeatureSource` without a cache.

    Args:
        backbone: with weights.
        batch_size: images per forward pass.
    """

    backbone: Backbone
    batch_size: int = 256
    _kept: dict[tuple[str, Column], Tensor] = field(default_factory=dict)

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        """The columns that `request` names, with labels where it names them."""
        if request.corruption is not None:
            copies = corrupted(split, request.corruption, self.backbone.preprocess)
            return self(copies, replace(request, corruption=None))
        request, second = separated(request)
        columns: dict[Field, Tensor] = {}
        if second is not None:
            columns[Field.PERTURBED] = self(split, second).features
        self._ensure(split, kept_of(self.backbone, request))
        wanted = {column: self._kept[split.digest, column] for column in read_by(request)}
        columns |= {c.field: rows for c, rows in wanted.items() if c.field != Field.MAPS}
        if Field.LABELS in request.fields:
            columns[Field.LABELS] = torch.from_numpy(split.labels.copy())
        return FeatureSet(columns, {c.layer: rows for c, rows in wanted.items() if c.field == Field.MAPS})

    def texts(self, texts: Texts) -> Tensor:
        """The unit embeddings (m, d) of a corpus, from the user's cache; made now if they are not there."""
        return text_embeddings(paths.cache_dir() / "features", self.backbone, texts)

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        """The features (n, d) of a split's images, each mixed with one of `others`."""
        return self(mixed(split, others, mixing, self.backbone.preprocess), MIXED_READ).features

    def scores(self, method: LiveMethod, split: Split) -> NDArray[np.float32]:
        """The scores (n,) of a split by a fitted method that runs the network itself."""
        rows = score_rows(method, self.backbone, split, self.batch_size)
        return np.concatenate([next(iter(part.values())) for part in rows])

    def _ensure(self, split: Split, columns: Sequence[Column]) -> None:
        missing = tuple(column for column in columns if (split.digest, column) not in self._kept)
        if not missing:
            return
        parts = list(extract(self.backbone, split, missing, self.batch_size))
        for column in missing:
            rows = np.concatenate([part[column] for part in parts])
            self._kept[split.digest, column] = torch.from_numpy(rows)


class Scored(NamedTuple):
    """What one batch yields.

    Args:
        scores: (n,) float32, larger = more OOD.
        logits: (n, c) float32; c = 0 where the network has no classifier.
    """

    scores: NDArray[np.float32]
    logits: NDArray[np.float32]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The predicted class (n,); −1 where the network has no classifier."""
        if not self.logits.shape[1]:
            return np.full(len(self.scores), -1, dtype=np.int64)
        found: NDArray[np.int64] = self.logits.argmax(axis=1).astype(np.int64)
        return found

    @property
    def misfit(self) -> Floats:
        """1 − softmax(z), (n, c) float64: how badly each class fits, the non-conformity of LAC."""
        shifted = np.exp(self.logits.astype(np.float64) - self.logits.max(axis=1, keepdims=True))
        return np.asarray(1.0 - shifted / shifted.sum(axis=1, keepdims=True))


def network_input(images: Sequence[Image], preprocess: Preprocess) -> Tensor:
    """Return images (h, w[, 3]) uint8 as the network sees them, (n, channels, h, w) float32."""
    crops = stack([prepared(image, preprocess) for image in images])
    if isinstance(preprocess, OwnPreprocess) or crops.dtype != np.uint8:
        return torch.from_numpy(crops)
    return normalise(crops, preprocess)


def scored(method: Method, backbone: Backbone, images: Tensor) -> Scored:
    """Return the scores of a batch by a fitted method, and the logits; the network runs once wherever that suffices.

    Args:
        method: fitted.
        backbone: with weights.
        images: (n, channels, h, w) as the network sees them.

    Raises:
        MethodError: a score is NaN, or not one per image.
    """
    passes = _Passes(backbone, images)
    found = _array(passes.scores(method))
    if found.shape != images.shape[:1] or any(map(math.isnan, found.tolist())):
        raise MethodError(
            f"{type(method).__name__}: scores of shape {found.shape} with {int(np.isnan(found).sum())} NaN for "
            f"{len(images)} images — one number per image expected"
        )
    return Scored(found, _array(passes.outputs(_PLAIN).logits))


def _array(rows: Tensor) -> NDArray[np.float32]:
    if rows.requires_grad or not rows.is_cpu or rows.dtype != torch.float32:
        rows = rows.detach().to("cpu", torch.float32)
    found: NDArray[np.float32] = rows.numpy()
    return found


@dataclass(eq=False)
class _Passes:
    """The forward passes of one batch, each made once."""

    backbone: Backbone
    images: Tensor
    _made: list[tuple[Request, Outputs]] = field(default_factory=list)

    def scores(self, method: Method) -> Tensor:
        """The scores (n,) of a fitted method."""
        if isinstance(method, Composite):
            return method.combine({name: self.scores(part).cpu() for name, part in method.fitted_parts.items()})
        if isinstance(method, LiveMethod):
            return method.score_images(self.images.to(self.backbone.device, torch.float32), self.backbone)
        return method.score(self._columns(method.request))

    def outputs(self, request: Request) -> Outputs:
        """What a request reads, from a pass that was made for it or for more."""
        for made, outputs in self._made:
            pooled = not request.layers or (made.pool == request.pool and set(request.layers) <= set(made.layers))
            patched = Field.PATCHES not in request.fields or Field.PATCHES in made.fields
            if made.perturb == request.perturb and pooled and patched:
                return outputs
        found = self.backbone.outputs(self.images, request)
        self._made.append((request, found))
        return found

    def _columns(self, request: Request) -> FeatureSet:
        request, second, read = _passes_of(request)
        found = self.outputs(read)
        columns: dict[Field, Tensor] = dict(_fields(found, request))
        if second is not None:
            columns[Field.PERTURBED] = self.outputs(replace(second, fields=_BASE)).features
        maps = {layer: found.maps[layer] for layer in request.layers}
        return FeatureSet(columns, maps, self.backbone.device)


@lru_cache(maxsize=64)
def _passes_of(request: Request) -> tuple[Request, Request | None, Request]:
    """What a method reads itself, what it reads of a second pass, and the request of the first."""
    request, second = separated(request)
    read = request.fields - {Field.LABELS, Field.TEXT} | _BASE
    return request, second, replace(request, fields=read, texts=(), head=False)


def _fields(outputs: Outputs, request: Request) -> Iterator[tuple[Field, Tensor]]:
    if Field.FEATURES in request.fields:
        yield Field.FEATURES, outputs.features
    if Field.LOGITS in request.fields:
        yield Field.LOGITS, outputs.logits
    if Field.PATCHES in request.fields and outputs.patches is not None:
        yield Field.PATCHES, outputs.patches


@dataclass(frozen=True, eq=False)
class Predictions:
    """A row per image, in the order in which they were given; for a single image all arrays have length 1.

    Classes and prediction sets are found when they are asked for: who only wants the decision does not wait for them.

    Args:
        found: scores and logits.
        p_value: (n,) marginal conformal p-value: small = unlike the calibration images.
        p_value_conditional: (n,) the calibration-conditional one; NaN where the calibration is weighted.
        is_ood: (n,) bool, the decision at `alpha`.
        alpha: of the decision.
        class_names: in the order of the logits.
        quantile: the non-conformity that a class of a prediction set does not exceed; None where calibration had no
            labels.
    """

    found: Scored
    p_value: Floats
    p_value_conditional: Floats
    is_ood: NDArray[np.bool_]
    alpha: float
    class_names: tuple[str, ...]
    quantile: float | None

    def __len__(self) -> int:
        return len(self.score)

    @property
    def score(self) -> NDArray[np.float32]:
        """(n,) float32, larger = more OOD."""
        return self.found.scores

    @cached_property
    def label(self) -> NDArray[np.int64]:
        """(n,) int64, the predicted class; −1 where the network has no classifier."""
        return self.found.predicted

    @cached_property
    def label_name(self) -> tuple[str, ...]:
        """(n,) its name; '' where there is none."""
        return tuple(self.class_names[y] if y >= 0 else "" for y in self.label.tolist())

    @cached_property
    def prediction_set(self) -> list[tuple[int, ...]] | None:
        """A tuple of class numbers for each image; None where calibration had no labels."""
        if self.quantile is None:
            return None
        return [tuple(row.nonzero()[0].tolist()) for row in prediction_sets(self.found.misfit, self.quantile)]

    def rows(self) -> list[dict[str, Any]]:
        """Return a mapping per image, of Python's own types: what JSON can hold."""
        sets = [None] * len(self) if self.prediction_set is None else list(map(list, self.prediction_set))
        conditional = [None if math.isnan(p) else p for p in self.p_value_conditional.tolist()]
        columns = {
            "score": self.score.tolist(),
            "p_value": self.p_value.tolist(),
            "p_value_conditional": conditional,
            "is_ood": self.is_ood.tolist(),
            "label": self.label.tolist(),
            "label_name": self.label_name,
            "prediction_set": sets,
        }
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> "DataFrame":
        """Return a row per image; `prediction_set` holds lists of class numbers."""
        import pandas as pd

        return pd.DataFrame(self.rows())
