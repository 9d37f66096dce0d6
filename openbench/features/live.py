"""The scores of live methods as a column of a split: made in one pass, resumed, whole or not at all."""

from collections.abc import Iterator

import torch
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Split
from openbench.core.live import LiveMethod
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.errors import MethodError
from openbench.features.extract import NamedRows
from openbench.features.portions import Portions


def column_of(method: LiveMethod) -> str:
    """Return the name of the column of a method's scores: equal names, equal scores of equal images.

    Raises:
        NotFittedError: there is something to fit, and the engine has not.
    """
    return f"scores.{digest(method.identity())}"


def score_rows(
    method: LiveMethod,
    backbone: Backbone,
    split: Split,
    batch_size: int,
    workers: int = 0,
    *,
    portions: Portions | None = None,
) -> Iterator[NamedRows]:
    """Yield the scores of consecutive batches of a split by a fitted method.

    Args:
        method: fitted.
        backbone: with weights.
        split: in manifest order.
        batch_size: images per call.
        workers: decode images while the network runs; see data.loading.
        portions: halves batches that do not fit into memory; None for ones that only this pass knows.

    Raises:
        MethodError: a score is NaN, or there is not one per image; the message names the split and the first image.
    """
    name, done, portions = column_of(method), 0, portions or Portions()

    def rows(images: Tensor) -> NamedRows:
        scores = method.score_images(images.to(backbone.device, torch.float32), backbone)
        where = f"{type(method).__name__}.score_images on {split.name} ({split.role})"
        if scores.shape != (len(images),):
            raise MethodError(f"{where}: shape {tuple(scores.shape)} — ({len(images)},) expected")
        missing = scores.isnan()
        if bool(missing.any()):
            first = split.keys[done + int(missing.int().argmax())]
            raise MethodError(
                f"{where}: {int(missing.sum())} of {len(images)} scores of a batch are NaN, first '{first}' — "
                f"parameters {method.params()}; NaN scores cannot be evaluated"
            )
        return {name: scores.detach().to("cpu", torch.float32).contiguous().numpy()}

    for images in batches(split, backbone.preprocess, batch_size, workers):
        for found in portions.of(images, backbone, rows):
            yield found
            done += len(found[name])
