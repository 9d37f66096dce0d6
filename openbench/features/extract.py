"""One pass of a split through a backbone, batch by batch: columns of its outputs, or the scores of a live method."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.backbones.base import Backbone
from openbench.core.benchmark import Image, Items, Split
from openbench.core.live import LiveMethod
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.errors import DataError, MethodError
from openbench.features.arrays import NamedRows
from openbench.features.columns import Column, pass_for

logger = logging.getLogger(__name__)

Rows = Mapping[Column, NDArray[np.float32]]
T = TypeVar("T")
_WAITS = 0.2  # share of the time that is worth a word
# What torch, cuDNN, cuBLAS and oneDNN say, each in an error of its own or in a plain RuntimeError.
_LACKING = re.compile(
    r"out of memory|can't allocate memory|not enough memory|_ALLOC_FAILED|could not create a (primitive|memory object)",
    re.IGNORECASE,
)


@dataclass
class Halving:
    """Batches that do not fit into memory are halved, so that a long pass goes on.

    Args:
        said: these lines.
    """

    said: list[str] = field(default_factory=list)
    _most: int | None = None

    def of(self, images: Tensor, backbone: Backbone, act: Callable[[Tensor], T]) -> Iterator[T]:
        """Yield what `act` makes of consecutive parts of a batch: of the whole where it fits into memory.

        Where halves are whole, as of the default batch size, the parts are the batches of a run with a smaller batch
        size, and their rows those of it; elsewhere the last one of each batch is smaller.

        Args:
            images: (n, 3, h, w), or what the backbone takes.
            backbone: that passes them; a part that failed does not count as passed.
            act: is called again, with half as many images, where memory does not suffice.

        Raises:
            RuntimeError, MemoryError: a single image does not fit.
        """
        at = 0
        while at < len(images):
            size, passed = min(self._most or len(images), len(images) - at), backbone.passes
            try:
                made = act(images[at : at + size])
            except (RuntimeError, MemoryError) as error:
                if size == 1 or not lacks_memory(error):
                    raise
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            else:
                yield made
                at += size
                continue
            # Here the error is gone, and with it what the failed pass held.
            backbone.passes = passed
            self._halve(size, backbone, reason)

    def _halve(self, size: int, backbone: Backbone, reason: str) -> None:
        self._most = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        line = (
            f"WARNING: a batch of {size} does not fit into memory on {backbone.device} ({reason}) — it goes on with "
            f"{self._most} at a time; runtime.batch_size={self._most} begins with that"
        )
        self.said.append(line)
        logger.warning(line)


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that memory does not suffice."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _LACKING.search(str(error)) is not None
    )


@dataclass
class Spent:
    """Wall seconds since this was made, and those of parts.

    Attributes:
        network: passing images, with their way to the device and that of the outputs back.
        images: waiting for batches that are read, decoded and resized.
    """

    network: float = 0.0
    images: float = 0.0
    _since: float = field(default_factory=lambda: time.perf_counter())

    @contextmanager
    def on(self, part: Literal["network", "images"]) -> Iterator[None]:
        """Count the body's time for a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, part, getattr(self, part) + time.perf_counter() - start)

    def waiting(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield batches, counting the time until each is there."""
        following = iter(batches)
        while True:
            with self.on("images"):
                batch = next(following, None)
            if batch is None:
                return
            yield batch

    def told(self, workers: int) -> str:
        """Return how the time was divided, in one line.

        Args:
            workers: threads that decode; where there are none and images are waited for, they are recommended.
        """
        total = max(time.perf_counter() - self._since, self.network + self.images, 1e-9)
        rest = total - self.network - self.images
        shares = [f"{part / total:.0%}" for part in (self.network, self.images, rest)]
        advice = " — runtime.workers=4 decodes while the network runs" * (not workers and self.images > _WAITS * total)
        return (
            f"of {total:.1f} s the network took {shares[0]}, waiting for images {shares[1]}, all else "
            f"{shares[2]}{advice}"
        )


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


def part_of(split: Split, start: int, stop: int | None = None) -> Split:
    """Return the rows of a split from `start` up to `stop`, or to its end, in their order."""
    stop = len(split) if stop is None else stop
    items = _Part(split.items, start, stop)
    return replace(split, items=items, labels=split.labels[start:stop], keys=split.keys[start:stop])


def extract(
    backbone: Backbone,
    split: Split,
    columns: tuple[Column, ...],
    batch_size: int,
    workers: int = 0,
    *,
    halving: Halving | None = None,
    spent: Spent | None = None,
) -> Iterator[Rows]:
    """Yield the rows of `columns` for consecutive batches of a split, from a single pass.

    Args:
        backbone: with weights.
        split: in manifest order.
        columns: what to extract; all with the same input step and map reduction.
        batch_size: images per forward pass.
        workers: decode images while the network runs; see data.loading.
        halving: halves batches that do not fit into memory; None for ones that only this pass knows.
        spent: is told the seconds of the network and of waiting for images.

    Raises:
        DataError: an output is NaN or infinite; the message names the split and the first image.
    """
    request, halving = pass_for(columns), halving or Halving()
    spent, done = spent or Spent(), 0

    def rows(images: Tensor) -> Rows:
        keys = split.keys[done : done + len(images)]
        with spent.on("network"):  # a GPU has done its work once its outputs are here
            outputs = backbone.outputs(images, request)
            return {column: _finite(column.of(outputs), column, (backbone, split), keys) for column in columns}

    for images in spent.waiting(batches(split, backbone.preprocess, batch_size, workers)):
        for found in halving.of(images, backbone, rows):
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
    halving: Halving | None = None,
) -> Iterator[NamedRows]:
    """Yield the scores of consecutive batches of a split by a fitted method.

    Args:
        method: fitted.
        backbone: with weights.
        split: in manifest order.
        batch_size: images per call.
        workers: decode images while the network runs; see data.loading.
        halving: halves batches that do not fit into memory; None for ones that only this pass knows.

    Raises:
        MethodError: a score is NaN, or there is not one per image; the message names the split and the first image.
    """
    name, done, halving = column_of(method), 0, halving or Halving()

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
        for found in halving.of(images, backbone, rows):
            yield found
            done += len(found[name])
