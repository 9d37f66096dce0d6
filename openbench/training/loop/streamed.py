"""A split whose images are decoded as batches need them, ahead of the network and while it computes."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.data.sources.items import decode
from openbench.data.sources.transforms import cropped, stack
from openbench.errors import DataError
from openbench.training.augment.random_resize import Reading
from openbench.training.images import ImageSet, Share, hold, labels_and_scale

# Decoded ImageNet would need 190 GB; CIFAR needs 0.15 GB.
MAX_BYTES = 8 << 30
_AHEAD = 3
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class _Planned:
    """A batch to come: its rows, and the pixels of those that are wanted."""

    rows: Tensor
    wanted: slice
    pixels: list[Future[Pixels]]


class StreamedImages(ImageSet):
    """Images that are read when a plan announces them, with the reading's random geometry; else as in evaluation.

    What is drawn for an image depends on the plan's seed and the image's place in it, so neither the number of threads
    nor their order changes a pixel.

    Args:
        split: what is read.
        preprocess: size and channels; geometry where nothing is drawn.
        device: where batches go.
        workers: threads that decode (which releases Python's lock); at least one.
        reading: the random geometry; None = evaluation's.
    """

    streams = True

    def __init__(
        self, split: Split, preprocess: Preprocess, device: torch.device, workers: int, reading: Reading | None
    ) -> None:
        self.labels, self.mean, self.std = labels_and_scale(split, preprocess, device)
        self._split, self._reading = split, reading
        self._preprocess = replace(preprocess, resize=preprocess.crop) if split.as_stored else preprocess
        # Threads are started when the first image is wanted.
        self._pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="training images")
        self._coming: deque[tuple[Tensor, slice, int]] = deque()
        self._begun: deque[_Planned] = deque()
        self._seed = 0

    def __len__(self) -> int:
        return len(self._split)

    def plan(self, batches: Sequence[Tensor], seed: int, share: Share | None = None) -> None:
        """Begin to read the first batches; each that is taken makes room for another."""
        for planned in self._begun:
            for future in planned.pixels:
                future.cancel()
        self._begun.clear()
        starts = np.cumsum([0, *(len(rows) for rows in batches)])
        wanted = [slice(0, len(rows)) if share is None else share(len(rows)) for rows in batches]
        self._coming = deque(zip(batches, wanted, map(int, starts), strict=False))
        self._seed = seed
        self._fill()

    def stored(self, rows: Tensor) -> Tensor:
        """Return the next batch of the plan if these are its rows, else read them as in evaluation."""
        if self._begun and torch.equal(self._begun[0].rows, rows):
            planned = self._begun.popleft()
            self._fill()
            wanted = self._as_one([future.result() for future in planned.pixels])
            if len(wanted) < len(rows):
                blank = wanted.new_zeros((len(rows), *wanted.shape[1:]))
                blank[planned.wanted] = wanted
                wanted = blank
        else:
            wanted = self._as_one(list(self._pool.map(self._plainly, rows.tolist())))
        return wanted.to(self.labels.device)

    def _fill(self) -> None:
        while self._coming and len(self._begun) < _AHEAD:
            rows, wanted, start = self._coming.popleft()
            places = range(*wanted.indices(len(rows)))
            pixels = [self._pool.submit(self._drawn, int(rows[i]), start + i) for i in places]
            self._begun.append(_Planned(rows, wanted, pixels))

    def _plainly(self, row: int) -> Pixels:
        return cropped(self._image(row), self._preprocess)

    def _drawn(self, row: int, place: int) -> Pixels:
        if self._reading is None:
            return self._plainly(row)
        rng = np.random.default_rng([self._seed, place])
        other = self._reading.replaced(self._split.keys[row], rng)
        return self._reading(self._image(row) if other is None else decode(other), self._preprocess.crop, rng)

    def _image(self, row: int) -> Pixels:
        try:
            return self._split.items[row]
        except DataError as error:
            split = self._split
            raise DataError(f"split '{split.name}' ({split.role}), image '{split.keys[row]}': {error}") from error

    def _as_one(self, images: list[Pixels]) -> Tensor:
        """Images as (b, side, side, channels); grey is copied into every channel."""
        whole = stack(images)
        if whole.ndim == 3:
            whole = np.repeat(whole[..., None], self._preprocess.channels, axis=3)
        elif self._preprocess.channels == 1:
            whole = np.stack([cropped(image, self._preprocess) for image in whole])[..., None]
        return torch.from_numpy(np.require(whole, requirements=["C", "W"]))


def open_images(
    split: Split, preprocess: Preprocess, device: torch.device, workers: int, reading: Reading | None = None
) -> ImageSet:
    """Return a split's images, in memory if they are few, else read as they are needed.

    Args:
        split: held if its images take 8 GiB at most once decoded, and nothing is drawn as they are read.
        preprocess: of evaluation.
        device: where batches go.
        workers: threads that decode.
        reading: the random geometry; None = evaluation's.
    """
    bytes_needed = len(split) * preprocess.channels * preprocess.crop**2
    if reading is None and bytes_needed <= MAX_BYTES:
        return hold(split, preprocess, device, workers)
    return StreamedImages(split, preprocess, device, workers, reading)
