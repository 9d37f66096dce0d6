"""Batches of a split as network input, in manifest order, prepared by threads while the network computes."""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import RowItems, Split
from openbench.core.preprocess import Preprocess
from openbench.data.sources.transforms import normalise, prepared, stack
from openbench.errors import DataError

# Batches in flight while the network computes: one being consumed next, one being prepared.
_AHEAD = 2


def batches(split: Split, preprocess: Preprocess, batch_size: int, workers: int = 0) -> Iterator[Tensor]:
    """Yield the images of a split, batch by batch; the values do not depend on `batch_size` or `workers`.

    Args:
        split: read in manifest order.
        preprocess: preparation of each image.
        batch_size: images per batch; the last may be smaller.
        workers: threads that decode and resize (both release Python's lock) while the caller computes; 0 = none.

    Yields:
        (b, channels, crop, crop) float32; (b, d) where items are vectors.

    Raises:
        DataError: an image that cannot be read; the message names the file.
    """
    if split.as_stored:
        preprocess = replace(preprocess, resize=preprocess.crop)
    spans = [(start, min(start + batch_size, len(split))) for start in range(0, len(split), batch_size)]
    if workers == 0:
        for start, stop in spans:
            yield _as_input(_crops(split, preprocess, start, stop), preprocess)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="images") as pool:
        waiting: deque[list[Future[NDArray[Any]]]] = deque()
        try:
            for start, stop in spans:
                edges = np.linspace(start, stop, min(workers, stop - start) + 1).round().astype(int).tolist()
                waiting.append([pool.submit(_crops, split, preprocess, *part) for part in itertools.pairwise(edges)])
                if len(waiting) > _AHEAD:
                    yield _joined(waiting.popleft(), preprocess)
            while waiting:
                yield _joined(waiting.popleft(), preprocess)
        finally:
            # The caller may stop early: batches that have not begun are not decoded.
            for part in itertools.chain(*waiting):
                part.cancel()


def _as_input(batch: NDArray[Any], preprocess: Preprocess) -> Tensor:
    """A batch as the network takes it: pixels are normalised, rows of a table and ready tensors stay as they are."""
    return normalise(batch, preprocess) if batch.dtype == np.uint8 else torch.from_numpy(batch)


def _joined(futures: Sequence[Future[NDArray[Any]]], preprocess: Preprocess) -> Tensor:
    """The batch whose parts threads prepare."""
    return _as_input(stack([image for future in futures for image in future.result()]), preprocess)


def _crops(split: Split, preprocess: Preprocess, start: int, stop: int) -> NDArray[Any]:
    """Images [start, stop) in the network's size, uint8; rows of a table as they are."""
    items = split.items
    if isinstance(items, RowItems):
        return items.gather(start, stop)
    crops = []
    for index in range(start, stop):
        try:
            item = items[index]
            crops.append(item if item.ndim == 1 else prepared(item, preprocess))
        except DataError as error:
            raise DataError(f"split '{split.name}' ({split.role}), image '{split.keys[index]}': {error}") from error
    return stack(crops)
