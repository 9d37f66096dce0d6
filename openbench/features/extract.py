"""A pass of a split through a backbone, batch by batch, for columns of its outputs or scores of a live method."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Items, RowItems, Split
from openbench.core.method import LiveMethod
from openbench.data.loading import batches
from openbench.data.sources.base import MadeItems
from openbench.digest import digest
from openbench.errors import DataError, MethodError
from openbench.features._arrays import NamedRows
from openbench.features.columns import Column, pass_for

logger = logging.getLogger(__name__)

T = TypeVar("T")
# Messages of torch, cuDNN, cuBLAS and oneDNN, in errors of their own or in a plain RuntimeError.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED|could not create a (primitive|memory object)",
    re.IGNORECASE,
)


@dataclass
class BatchHalving:
    """Batches that do not fit into memory are halved, so that a long pass goes on.

    Args:
        size: images in a batch.
        workers: decode images while the network runs; see data.loading.
        warnings: a line for each time that the size was halved.
    """

    size: int = 256
    workers: int = 0
    warnings: list[str] = field(default_factory=list)
    _most: int | None = None

    def of(self, split: Split, backbone: Backbone, act: Callable[[Tensor, slice], T]) -> Iterator[T]:
        """Yield the results of `act` for consecutive images of a split; for a whole batch if it fits into memory.

        Args:
            split: in manifest order.
            backbone: that passes the images; a part that failed does not count as passed.
            act: is given images (n, 3, h, w), or the input of the backbone, and which rows of the split they are; it is
                called again with half as many if it runs out of memory.

        Raises:
            RuntimeError, MemoryError: a single image does not fit.
        """
        start = 0
        for images in batches(split, backbone.preprocess, self.size, self.workers):
            end, first = start + len(images), start
            while first < end:
                stop, passed = min(end, first + (self._most or len(images))), backbone.passes
                try:
                    result = act(images[first - start : stop - start], slice(first, stop))
                except (RuntimeError, MemoryError) as error:
                    if stop - first == 1 or not is_out_of_memory(error):
                        raise
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
                else:
                    yield result
                    first = stop
                    continue
                # Here the error is gone, and with it the tensors of the failed pass.
                backbone.passes = passed
                self._halve(stop - first, backbone, reason)
            start = end

    def _halve(self, size: int, backbone: Backbone, reason: str) -> None:
        self._most = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        line = (
            f"WARNING: a batch of {size} does not fit into memory on {backbone.device} ({reason}), so it continues "
            f"with {self._most} at a time — runtime.batch_size={self._most} begins with that"
        )
        self.warnings.append(line)
        logger.warning(line)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory does not suffice."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    )


def select(split: Split, rows: Sequence[int]) -> Split:
    """Return some rows of a split, with its digest."""
    items: Items = MadeItems(len(rows), lambda index: split.items[rows[index]])
    if isinstance(split.items, RowItems):  # which are read in batches
        items = RowItems(split.items.parts, np.asarray(rows if split.items.rows is None else split.items.rows[rows]))
    if isinstance(rows, range):  # keys of millions of rows are made when they are read
        part = slice(rows.start, rows.stop, rows.step)
        return replace(split, items=items, labels=split.labels[part], keys=split.keys[part])
    keys = [split.keys[row] for row in rows]
    return replace(split, items=items, labels=split.labels[np.asarray(rows, int)], keys=keys)


def extract(
    backbone: Backbone, split: Split, columns: tuple[Column, ...], halving: BatchHalving
) -> Iterator[NamedRows]:
    """Yield the rows of `columns`, by their names, for consecutive batches of a split, from a single pass.

    Args:
        backbone: with weights.
        split: in manifest order.
        columns: what to extract; all with the same input step and map reduction.
        halving: makes the batches.

    Raises:
        DataError: an output is NaN or infinite; the message names the split and the first image.
    """
    request = pass_for(columns)

    def rows(images: Tensor, at: slice) -> NamedRows:
        outputs = backbone.outputs(images, request)
        keys = split.keys[at]
        return {column.name: _finite(column.of(outputs), column, (backbone, split), keys) for column in columns}

    return halving.of(split, backbone, rows)


def _finite(rows: Tensor, column: Column, of: tuple[Backbone, Split], keys: Sequence[str]) -> NDArray[np.float32]:
    bad = ~torch.isfinite(rows.flatten(1)).all(dim=1)
    if bool(bad.any()):
        backbone, split = of
        first = int(bad.int().argmax())
        raise DataError(
            f"backbone '{backbone.name}' on split '{split.name}' ({split.role}): {column.name} is NaN or infinite for "
            f"{int(bad.sum())} of {len(keys)} images of a batch, first '{keys[first]}' — check image and weights"
        )
    # Patches, which are unit vectors, are cached in float16.
    dtype = rows.dtype if rows.dtype == torch.float16 else torch.float32
    return rows.to("cpu", dtype).contiguous().numpy()


def column_of(method: LiveMethod) -> str:
    """Return the name of the column of a method's scores: equal names, equal scores of equal images.

    Raises:
        NotFittedError: there is something to fit, and the engine has not.
    """
    return f"scores.{digest(method.identity())}"


def score_rows(method: LiveMethod, backbone: Backbone, split: Split, halving: BatchHalving) -> Iterator[NamedRows]:
    """Yield the scores of consecutive batches of a split by a fitted method.

    Args:
        method: fitted.
        backbone: with weights.
        split: in manifest order.
        halving: makes the batches.

    Raises:
        MethodError: a score is NaN, or there is not one per image; the message names the split and the first image.
    """
    name = column_of(method)

    def rows(images: Tensor, at: slice) -> NamedRows:
        scores = method.score_images(images.to(backbone.device, torch.float32), backbone)
        where = f"{type(method).__name__}.score_images on {split.name} ({split.role})"
        if scores.shape != (len(images),):
            raise MethodError(f"{where}: shape {tuple(scores.shape)} — ({len(images)},) expected")
        missing = scores.isnan()
        if bool(missing.any()):
            first = split.keys[at][int(missing.int().argmax())]
            raise MethodError(f"{where}: {int(missing.sum())} of {len(images)} scores are NaN, first '{first}'")
        return {name: scores.detach().to("cpu", torch.float32).contiguous().numpy()}

    return halving.of(split, backbone, rows)
