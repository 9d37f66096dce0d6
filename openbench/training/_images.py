"""The images of a training: a split in memory, or decoded as batches need them."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.data.loading import cropped, stack
from openbench.data.sources.base import decode
from openbench.errors import DataError
from openbench.training.augment.reading import Reading

# Decoded ImageNet would need 190 GB; CIFAR needs 0.15 GB.
MAX_BYTES = 8 << 30
_READ, _AHEAD = 512, 3
Pixels = NDArray[np.uint8]


class ImageSet:
    """The images of a split as training reads them.

    They are held in memory, with the geometry of evaluation, if that takes 8 GiB at most and nothing is drawn as they
    are read; else threads read them as batches need them. The draws for an image depend on the epoch's seed and the
    image's place in the epoch, so neither the number of threads nor their order changes a pixel.

    Args:
        split: what is read.
        preprocess: size and channels; geometry where nothing is drawn.
        device: where batches go.
        workers: threads that decode (which releases Python's lock); at least one.
        reading: the random geometry; None: that of evaluation.

    Attributes:
        labels: (n,) int64, on the device.
        pixels: (n, h, w, channels) uint8, on the device, if they are held.
    """

    def __init__(
        self,
        split: Split,
        preprocess: Preprocess,
        device: torch.device,
        workers: int = 0,
        reading: Reading | None = None,
    ) -> None:
        self.labels = torch.from_numpy(split.labels.copy()).to(device)
        self._mean, self._std = (
            torch.tensor(values, dtype=torch.float32, device=device) for values in (preprocess.mean, preprocess.std)
        )
        self._split, self._reading, self._device = split, reading, device
        self._drawn_as = replace(preprocess, resize=preprocess.crop)  # what is drawn has its size
        self._preprocess = self._drawn_as if split.as_stored else preprocess
        # Threads are started when the first image is wanted.
        self._pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="training images")
        self.pixels: Tensor | None = None
        if reading is None and len(split) * preprocess.channels * preprocess.crop**2 <= MAX_BYTES:
            self.pixels = torch.cat([self.stored(rows) for rows in torch.split(torch.arange(len(split)), _READ)])

    def __len__(self) -> int:
        """The number of images."""
        return len(self._split)

    def stored(self, rows: Tensor) -> Tensor:
        """Return the images at `rows` (b,) int64 as in evaluation, (b, h, w, channels) uint8."""
        if self.pixels is not None:
            return self.pixels[rows.to(self._device)]
        return self._batch(self._pool.map(self._plainly, rows.tolist()))

    def epoch(
        self, batches: Sequence[Tensor], generator: torch.Generator, share: Callable[[int], slice] | None = None
    ) -> Iterator[Tensor]:
        """Return the images of each batch in turn, (b, h, w, channels) uint8; some batches are read ahead.

        Args:
            batches: rows (b,) int64 of each.
            generator: gives the seed of what is drawn as images are read.
            share: number of images in a batch → this process's part; the others come as black. None: all.
        """
        if self.pixels is not None:
            return map(self.stored, batches)
        return self._streamed(batches, int(torch.randint(0, 2**62, (), generator=generator)), share)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return (x/255 − μ)/σ, (b, channels, h, w) float32, channels last in memory.

        Args:
            pixels: (b, h, w, channels) uint8.
        """
        # As one product and one difference on the batch.
        scaled = pixels.to(torch.float32).mul_(1 / (255 * self._std)).sub_(self._mean / self._std)
        return scaled.permute(0, 3, 1, 2)

    def images(self, rows: Tensor) -> Tensor:
        """Return the images at `rows` (b,) int64, (b, channels, h, w) float32, normalised."""
        return self.normalised(self.stored(rows))

    def clean(self, batch_size: int = _READ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (images, labels, rows) of all images in order, without augmentation; rows stay on the CPU."""
        for rows in torch.split(torch.arange(len(self)), batch_size):
            yield self.images(rows), self.labels[rows.to(self._device)], rows

    def _streamed(self, batches: Sequence[Tensor], seed: int, share: Callable[[int], slice] | None) -> Iterator[Tensor]:
        def begun() -> Iterator[tuple[int, slice, list[Future[Pixels]]]]:
            first = 0  # place of the batch in the epoch
            for rows in batches:
                n = len(rows)
                part = slice(0, n) if share is None else share(n)
                places = range(*part.indices(n))
                yield n, part, [self._pool.submit(self._drawn, int(rows[i]), [seed, first + i]) for i in places]
                first += n

        coming = begun()
        waiting = deque(islice(coming, _AHEAD))
        while waiting:
            waiting.extend(islice(coming, 1))
            n, part, pixels = waiting.popleft()
            images = self._batch(future.result() for future in pixels)
            whole = images if len(images) == n else images.new_zeros((n, *images.shape[1:]))
            whole[part] = images
            yield whole

    def _plainly(self, row: int) -> Pixels:
        return cropped(self._image(row), self._preprocess)

    def _drawn(self, row: int, seed: list[int]) -> Pixels:
        if self._reading is None:
            return self._plainly(row)
        rng = np.random.default_rng(seed)
        other = self._reading.replaced(self._split.keys[row], rng)
        image = self._image(row) if other is None else decode(other)
        return cropped(self._reading(image, self._preprocess.crop, rng), self._drawn_as)

    def _image(self, row: int) -> Pixels:
        try:
            return self._split.items[row]
        except DataError as error:
            split = self._split
            raise DataError(f"split '{split.name}' ({split.role}), image '{split.keys[row]}': {error}") from error

    def _batch(self, images: Iterable[Pixels]) -> Tensor:
        """Return images as (b, side, side, channels); grey is copied into every channel."""
        whole = stack(list(images))
        if whole.ndim == 3:
            whole = np.repeat(whole[..., None], self._preprocess.channels, axis=3)
        return torch.from_numpy(np.require(whole, requirements=["C", "W"])).to(self._device)
