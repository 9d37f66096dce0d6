"""One pass of a split through a backbone, batch by batch, as the arrays of the columns asked for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Image, Items, Split
from openbench.data.loading import batches
from openbench.errors import DataError
from openbench.features.columns import Column, pass_for
from openbench.features.portions import Portions
from openbench.features.spent import Spent

Rows = Mapping[Column, NDArray[np.float32]]
NamedRows = Mapping[str, NDArray[np.float32]]  # column name → its rows


@dataclass(frozen=True)
class _Part:
    """The items from `start` up to `stop`."""

    items: Items
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Image:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.items[self.start + index]


def rest_of(split: Split, start: int) -> Split:
    """Return the rows of a split from `start` on, for a pass that was interrupted there."""
    if start == 0:
        return split
    return part_of(split, start, len(split))


def part_of(split: Split, start: int, stop: int) -> Split:
    """Return the rows of a split from `start` up to `stop`, in their order."""
    items = _Part(split.items, start, stop)
    return replace(split, items=items, labels=split.labels[start:stop], keys=split.keys[start:stop])


def extract(
    backbone: Backbone,
    split: Split,
    columns: tuple[Column, ...],
    batch_size: int,
    workers: int = 0,
    *,
    portions: Portions | None = None,
    spent: Spent | None = None,
) -> Iterator[Rows]:
    """Yield the rows of `columns` for consecutive batches of a split, from a single pass.

    Args:
        backbone: with weights.
        split: in manifest order.
        columns: what to extract; all with the same input step and map reduction.
        batch_size: images per forward pass.
        workers: decode images while the network runs; see data.loading.
        portions: halves batches that do not fit into memory; None for ones that only this pass knows.
        spent: is told the seconds of the network and of waiting for images.

    Raises:
        DataError: an output is NaN or infinite; the message names the split and the first image.
    """
    request, portions = pass_for(columns), portions or Portions()
    spent, done = spent or Spent(), 0

    def rows(images: Tensor) -> Rows:
        keys = split.keys[done : done + len(images)]
        with spent.on("network"):  # a GPU has done its work once its outputs are here
            outputs = backbone.outputs(images, request)
            return {column: _finite(column.of(outputs), column, (backbone, split), keys) for column in columns}

    for images in spent.waiting(batches(split, backbone.preprocess, batch_size, workers)):
        for found in portions.of(images, backbone, rows):
            yield found
            done += len(found[columns[0]])


def _finite(rows: Tensor, column: Column, of: tuple[Backbone, Split], keys: Sequence[str]) -> NDArray[np.float32]:
    bad = ~torch.isfinite(rows.flatten(1)).all(dim=1)
    if bool(bad.any()):
        backbone, split = of
        first = int(bad.int().argmax())
        raise DataError(
            f"backbone '{backbone.name}' on split '{split.name}' ({split.role}): {column.name} is NaN or infinite for "
            f"{int(bad.sum())} of {len(keys)} images of a batch, first '{keys[first]}' — finite numbers expected — "
            "check that image, the weights and the preprocessing"
        )
    # Patches are kept in half the size; what they hold are unit vectors.
    kept = rows.dtype if rows.dtype == torch.float16 else torch.float32
    found: NDArray[np.float32] = rows.to("cpu", kept).contiguous().numpy()
    return found
