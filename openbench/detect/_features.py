"""Features, scores and predictions of images in memory: one pass of the network per batch wherever that suffices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench import paths
from openbench.backbones.base import Backbone
from openbench.core.benchmark import Image, Split
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field, Mixing, Request, Role, Texts
from openbench.engine.evaluate import FeatureSource, Scoring, score_split
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.features.columns import Column, columns_of_pass, read_by, separated
from openbench.features.extract import BatchHalving, extract, score_rows
from openbench.features.texts import text_embeddings
from openbench.metrics.conformal.prediction_sets import prediction_sets
from openbench.metrics.curve import Floats

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(eq=False)
class MemoryFeatures(FeatureSource):
    """Features in memory: columns of splits, extracted at their first use.

    Args:
        backbone: with weights.
        batch_size: images per forward pass.
    """

    backbone: Backbone
    batch_size: int = 256
    _columns: dict[tuple[str, Column], Tensor] = field(default_factory=dict)

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        """Return the columns that `request` names, with labels where it names them."""
        request, second = separated(request)
        self._extract(split, columns_of_pass(self.backbone, request))
        rows = {column: self._columns[split.digest, column] for column in read_by(request)}
        columns: dict[Field, Tensor] = {c.field: tensor for c, tensor in rows.items() if c.field != Field.MAPS}
        if second is not None:
            columns[Field.PERTURBED] = self(split, second).features
        if Field.LABELS in request.fields:
            columns[Field.LABELS] = torch.from_numpy(split.labels.copy())
        return FeatureSet(columns, {c.layer: tensor for c, tensor in rows.items() if c.field == Field.MAPS})

    def texts(self, texts: Texts) -> Tensor:
        """Return the unit embeddings (m, d) of a corpus, from the user's cache."""
        return text_embeddings(paths.cache_dir() / "features", self.backbone, texts)

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        """Return the features (n, d) of a split's images, each mixed with one of `others`."""
        return self(mixed(split, others, mixing, self.backbone.preprocess), MIXED_READ).features

    def scores(self, method: LiveMethod, split: Split) -> NDArray[np.float32]:
        """Return the scores (n,) of a split by a fitted method that runs the network itself."""
        rows = score_rows(method, self.backbone, split, BatchHalving(self.batch_size))
        return np.concatenate([next(iter(part.values())) for part in rows])

    def _extract(self, split: Split, columns: Sequence[Column]) -> None:
        missing = tuple(column for column in columns if (split.digest, column) not in self._columns)
        parts = list(extract(self.backbone, split, missing, BatchHalving(self.batch_size))) if missing else []
        for column in missing:
            self._columns[split.digest, column] = torch.from_numpy(
                np.concatenate([part[column.name] for part in parts])
            )


class BatchScores(NamedTuple):
    """Scores and logits of a batch.

    Args:
        scores: (n,) float32, larger = more OOD.
        logits: (n, c) float32; c = 0 without a classifier.
    """

    scores: NDArray[np.float32]
    logits: NDArray[np.float32]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The predicted class (n,); −1 without a classifier."""
        if not self.logits.shape[1]:
            return np.full(len(self.scores), -1, dtype=np.int64)
        return self.logits.argmax(axis=1).astype(np.int64)

    @property
    def misfit(self) -> Floats:
        """1 − softmax(z), (n, c) float64: the non-conformity of LAC."""
        shifted = np.exp(self.logits.astype(np.float64) - self.logits.max(axis=1, keepdims=True))
        return np.asarray(1.0 - shifted / shifted.sum(axis=1, keepdims=True))


def scored(method: Method, backbone: Backbone, images: Sequence[Image]) -> BatchScores:
    """Return the scores of a batch by a fitted method, and the logits; a pass of the network serves both.

    Args:
        method: fitted.
        backbone: with weights.
        images: (h, w[, 3]) uint8.

    Raises:
        DataError: the network's outputs are NaN or infinite.
        MethodError: a score is NaN, or not one per image.
    """
    n = len(images)
    split = Split("images", Role.ID_TEST, images, np.full(n, -1), list(map(str, range(n))), (), "images", n)
    features = MemoryFeatures(backbone, n)
    scores = score_split(method, split, Scoring(features, backbone.device, n))
    if not backbone.num_classes:
        return BatchScores(scores, np.empty((n, 0), np.float32))
    logits: NDArray[np.float32] = features(split, Request(fields=frozenset({Field.LOGITS}))).logits.numpy()
    return BatchScores(scores, logits)


@dataclass(frozen=True, eq=False)
class Predictions:
    """A row per image, in their order; for a single image all arrays have length 1.

    Args:
        outputs: scores and logits.
        p_value: (n,) marginal conformal p-value: small = unlike the calibration images.
        p_value_conditional: (n,) calibration-conditional p-value; NaN with weights.
        is_ood: (n,) bool, the decision at `alpha`.
        alpha: of the decision.
        class_names: in the order of the logits.
        quantile: the largest non-conformity in a prediction set; None if calibration had no labels.
    """

    outputs: BatchScores
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
        return self.outputs.scores

    @cached_property
    def label(self) -> NDArray[np.int64]:
        """(n,) int64, the predicted class; −1 without a classifier."""
        return self.outputs.predicted

    @cached_property
    def label_name(self) -> tuple[str, ...]:
        """(n,) its name; '' without a classifier."""
        return tuple(self.class_names[y] if y >= 0 else "" for y in self.label.tolist())

    @cached_property
    def prediction_set(self) -> list[tuple[int, ...]] | None:
        """A tuple of class numbers for each image; None if calibration had no labels."""
        if self.quantile is None:
            return None
        return [tuple(row.nonzero()[0].tolist()) for row in prediction_sets(self.outputs.misfit, self.quantile)]

    def rows(self) -> list[dict[str, Any]]:
        """Return a mapping per image, of types that JSON has."""
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
