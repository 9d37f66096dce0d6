"""Batches of a split as network input, in manifest order, prepared while the network computes if asked."""

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import RowItems, Split
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.data.sources.items import ArrayItems
from openbench.data.sources.transforms import normalise, prepared, resized_shape, stack
from openbench.errors import ConfigError, DataError

# Batches in flight while the network computes: one being consumed next, one being prepared.
_AHEAD = 2


def batches(split: Split, preprocess: Preprocess, batch_size: int, workers: int = 0) -> Iterator[Tensor]:
    """Yield the images of a split, batch by batch; the values do not depend on `batch_size` or `workers`.

    Args:
        split: read in manifest order.
        preprocess: what is done to each image.
        batch_size: images per batch; the last may be smaller.
        workers: threads that decode and resize (both release Python's lock) while the caller computes; 0 = none.

    Yields:
        (b, channels, crop, crop) float32; (b, d) where items are vectors.

    Raises:
        ConfigError: `batch_size` below 1 or `workers` below 0.
        DataError: an image that cannot be read; the message names the file.
    """
    if batch_size < 1 or workers < 0:
        raise ConfigError(f"batches: batch_size ≥ 1 and workers ≥ 0 expected — found {batch_size}, {workers}")
    if split.as_stored:
        preprocess = replace(preprocess, resize=preprocess.crop)
    spans = [(start, min(start + batch_size, len(split))) for start in range(0, len(split), batch_size)]
    if workers == 0:
        for start, stop in spans:
            yield _as_input(_crops(split, preprocess, start, stop), preprocess)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="images") as pool:
        waiting: deque[_Pending] = deque()
        try:
            for start, stop in spans:
                waiting.append(_submit(pool, workers, (split, preprocess), (start, stop)))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result(preprocess)
            while waiting:
                yield waiting.popleft().result(preprocess)
        finally:
            # The caller may stop early: batches that have not begun are not decoded.
            for pending in waiting:
                pending.cancel()


def _as_input(batch: NDArray[Any], preprocess: Preprocess) -> Tensor:
    """A batch as the network takes it: pixels are normalised, rows of a table and ready tensors stay as they are."""
    return normalise(batch, preprocess) if batch.dtype == np.uint8 else torch.from_numpy(batch)


@dataclass(frozen=True)
class _Pending:
    """The parts of one batch, each the work of one thread."""

    parts: tuple[Future[NDArray[np.uint8]], ...]

    def result(self, preprocess: Preprocess) -> Tensor:
        """The batch, once its parts are ready."""
        parts = [part.result() for part in self.parts]
        whole = parts[0] if len(parts) == 1 else _joined(parts)
        return _as_input(whole, preprocess)

    def cancel(self) -> None:
        """Cancel the parts that have not begun."""
        for part in self.parts:
            part.cancel()


def _submit(
    pool: ThreadPoolExecutor, workers: int, source: tuple[Split, Preprocess], span: tuple[int, int]
) -> _Pending:
    edges = np.linspace(*span, min(workers, span[1] - span[0]) + 1).round().astype(int)
    split, preprocess = source
    return _Pending(
        tuple(
            pool.submit(_crops, split, preprocess, int(start), int(stop)) for start, stop in itertools.pairwise(edges)
        )
    )


def _joined(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    if len({part.ndim for part in parts}) == 1:
        return np.concatenate(parts)
    return np.concatenate([np.repeat(p[..., None], 3, axis=3) if p.ndim == 3 else p for p in parts])


def _crops(split: Split, preprocess: Preprocess, start: int, stop: int) -> NDArray[Any]:
    """Images [start, stop) in the network's size, uint8; rows of a table as they are."""
    items = split.items
    if isinstance(items, RowItems):
        return items.gather(start, stop)
    own = isinstance(preprocess, OwnPreprocess)
    if isinstance(items, ArrayItems) and not own and _as_stored(items, preprocess):
        return items.gather(start, stop)
    crops = []
    for index in range(start, stop):
        try:
            item = items[index]
            crops.append(item if item.ndim == 1 else prepared(item, preprocess))
        except DataError as error:
            raise DataError(f"split '{split.name}' ({split.role}), image '{split.keys[index]}': {error}") from error
    return np.stack(crops) if crops[0].ndim == 1 else stack(crops)


def _as_stored(items: ArrayItems, preprocess: Preprocess) -> bool:
    """Whether the stored images are already what the network takes, so that none needs any work."""
    height, width, *channels = items.pixels.shape[1:]
    side = preprocess.crop
    kept = height == width == side and resized_shape(height, width, preprocess.resize) == (side, side)
    return kept and (not channels or preprocess.channels == 3)
