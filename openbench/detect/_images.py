"""Images and rows as users pass them (PIL, arrays, tensors, lists, data sets with labels), and their scores.

One pass of the network per batch serves features, scores and predictions wherever that suffices.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from scipy.special import softmax
from torch import Tensor

from openbench import paths
from openbench.api.arguments import as_array, as_features, class_indices
from openbench.backbones.base import Backbone
from openbench.core.benchmark import Image, Items, RowItems, Split
from openbench.core.features import FeatureSet
from openbench.core.method import LiveMethod
from openbench.core.request import Field, Mixing, Request, Role, Texts
from openbench.data.sources.base import DEEP
from openbench.digest import bytes_sha256, row_digests
from openbench.engine.evaluate import FeatureSource
from openbench.errors import DataError
from openbench.features.changed_images import MIXED_READ, mixed
from openbench.features.columns import Column, columns_of_pass, read_by, separated
from openbench.features.extract import BatchHalving, extract, score_rows
from openbench.features.texts import text_embeddings
from openbench.metrics.conformal.prediction_sets import prediction_sets
from openbench.metrics.curve import Floats

if TYPE_CHECKING:
    from pandas import DataFrame

_FORMS = "a PIL image, a uint8 array (h, w[, 3]) or tensor ([3,] h, w), or several as a list, array or tensor (n, …)"
_DATA = f"{_FORMS}; with labels: a data set of (image, label) pairs, or the pair (images, labels)"
_DIGEST = 16  # bytes of an image's SHA-256
_UNKNOWN = -1  # the label of an image without one


def as_pixels(image: Any, where: str = "image") -> Image:
    """Return one image as pixels (h, w) or (h, w, 3) uint8.

    Args:
        image: of PIL, an array, or a tensor with its channels first.
        where: its name in messages.

    Raises:
        DataError: something else, or values that are not uint8.
    """
    if isinstance(image, Pillow.Image):
        if image.mode.startswith(DEEP):
            what = f"{where} has more than 8 bits per pixel (mode {image.mode})"
            raise DataError(f"{what} — scale it to 0…255 and pass it as 8-bit grey")
        image = np.asarray(image if image.mode in ("RGB", "L") else image.convert("RGB"))
    shape = tuple(getattr(image, "shape", ()))
    if isinstance(image, Tensor):
        image = image.detach().cpu().numpy()
        image = image.transpose(1, 2, 0) if image.ndim == 3 and image.shape[0] in (1, 3) else image
    if not isinstance(image, np.ndarray):
        raise DataError(f"{where} is a {type(image).__name__} — allowed: {_FORMS}")
    if image.dtype != np.uint8:
        what = f"{where} has values of type {image.dtype}, and uint8 pixels from 0 to 255 are expected"
        raise DataError(f"{what} — pass the image without its transform, or (255 * x).round() as uint8")
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[..., 0]
    if not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)) or 0 in image.shape:
        raise DataError(f"{where} has the shape {shape} — allowed: {_FORMS}")
    return image


def as_list(images: Any) -> Sequence[Any]:
    """Return a sequence of images.

    Args:
        images: one image, or several as a list, an array or a tensor.

    Raises:
        DataError: something else, no image, or one colour image with its channels on the wrong axis, whose rows would
            be taken for images.
    """
    if isinstance(images, Pillow.Image):
        return [images]
    if isinstance(images, np.ndarray | Tensor):
        channels, other = (0, 2) if isinstance(images, Tensor) else (2, 0)
        if images.ndim == 2 or (images.ndim == 3 and images.shape[channels] in (1, 3)):
            return [images]
        if images.ndim == 3 and images.shape[other] in (1, 3):
            what = f"images has the shape {tuple(images.shape)} of one colour image with its channels"
            side = "first" if other == 0 else "last"
            raise DataError(f"{what} {side} — move that axis, or pass grey images as a list")
    elif isinstance(images, str | bytes | dict) or not hasattr(images, "__getitem__"):
        raise DataError(f"images is a {type(images).__name__} — allowed: {_FORMS}")
    if not len(images):
        raise DataError("images is empty — pass at least one image")
    return images


class ImageItems:
    """The images of a list or data set as pixels, decoded when they are read; the digest of each is then noted.

    Args:
        source: of images, or of (image, label) pairs.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.digests: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Image:
        item = self.source[index]
        pixels = as_pixels(item[0] if _is_pair(item) else item, f"image {index}")
        content = f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).tobytes()
        self.digests[index] = np.frombuffer(bytes.fromhex(bytes_sha256(content)[: 2 * _DIGEST]), dtype=np.uint8)
        return pixels


def as_rows(features: Any, where: str = "features") -> RowItems:
    """Return features (n, d), or those of a single sample (d,), as items.

    Raises:
        DataError: another shape, or NaN or infinity.
    """
    if isinstance(features, RowItems):
        return features
    array = as_array(features, where)
    return RowItems((as_features(array[None] if array.ndim == 1 else array, where).numpy(),))


def digests_of(items: Items) -> NDArray[np.uint8]:
    """Return the digests (n, 16) uint8 of images, which are read unless they were before, or of rows of features."""
    if isinstance(items, RowItems):
        return row_digests(items.gather(0, len(items)))
    images = items if isinstance(items, ImageItems) else ImageItems(items)
    for index in range(len(images)):
        if index not in images.digests:
            images[index]
    return np.stack([images.digests[index] for index in range(len(images))])


def as_split(data: Any, role: Role, classes: Sequence[str], features: bool = False) -> Split:
    """Return the data of `fit` or `calibrate` as a split, with labels if there are any.

    Args:
        data: images, (images, labels), a data set of images or of (image, label) pairs, or a split.
        role: what the images are for.
        classes: names of the classes; labels that are names are looked up in them.
        features: whether features (n, d) are expected in place of images.

    Raises:
        DataError: something else, or labels that do not fit.
    """
    if isinstance(data, Split):
        return data
    where, labels = str(role).replace("_", " "), None
    if isinstance(data, tuple) and len(data) == 2 and not _is_pair(data):
        data, labels = data
    if isinstance(data, dict) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(f"{where} images: found a {type(data).__name__} — allowed: {_DATA}")
    source: Any = as_rows(data, f"{where} features") if features else as_list(data)
    known = _checked_labels(_labels_in(source) if labels is None else labels, len(source), classes, where)
    items: Items = source if features else ImageItems(source)
    keys: Any = range(len(source))  # read for messages only
    # The images have not been read, so no two splits may count as equal.
    return Split("given", role, items, known, keys, tuple(classes), secrets.token_hex(16), len(source))


def _is_pair(item: Any) -> bool:
    """Return whether this is an image with its label."""
    pair = isinstance(item, tuple | list) and len(item) == 2
    return pair and np.ndim(item[1]) == 0 and not isinstance(item[1], Pillow.Image)


def _labels_in(source: Any) -> Any:
    """Return the labels of a data set; None without labels."""
    for name in ("targets", "labels"):
        labels = getattr(source, name, None)
        if labels is not None and not callable(labels) and len(labels) == len(source):
            return labels
    if isinstance(source, np.ndarray | Tensor | RowItems) or not _is_pair(source[0]):
        return None
    return [source[index][1] for index in range(len(source))]


def _checked_labels(labels: Any, n: int, classes: Sequence[str], where: str) -> NDArray[np.int64]:
    """Return labels (n,) int64; −1 throughout without labels."""
    if labels is None:
        return np.full(n, _UNKNOWN, dtype=np.int64)
    if classes and not isinstance(labels, Tensor) and np.asarray(labels).dtype.kind in "UO":
        if stray := set(map(str, labels)) - set(classes):
            raise DataError(f"{where} labels: '{min(stray)}' is not a class — allowed: {', '.join(classes)}")
        labels = [classes.index(str(name)) for name in labels]
    return class_indices(labels, n, f"{where} labels", len(classes) or None)


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
        known, columns_made = self._columns, columns_of_pass(self.backbone, request)
        if missing := tuple(column for column in columns_made if (split.digest, column) not in known):
            parts = list(extract(self.backbone, split, missing, BatchHalving(self.batch_size)))
            for column in missing:
                known[split.digest, column] = torch.from_numpy(np.concatenate([part[column.name] for part in parts]))
        rows = {column: known[split.digest, column] for column in read_by(request)}
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
        return np.asarray(1.0 - softmax(self.logits.astype(np.float64), axis=1))


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
        names = ("score", "p_value", "p_value_conditional", "is_ood", "label")
        columns: dict[str, Sequence[Any]] = {name: getattr(self, name).tolist() for name in names}
        columns["p_value_conditional"] = [None if math.isnan(p) else p for p in columns["p_value_conditional"]]
        columns["label_name"] = self.label_name
        columns["prediction_set"] = list(map(list, self.prediction_set or ())) or [None] * len(self)
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def to_pandas(self) -> "DataFrame":
        """Return a row per image; `prediction_set` holds lists of class numbers."""
        import pandas as pd

        return pd.DataFrame(self.rows())
