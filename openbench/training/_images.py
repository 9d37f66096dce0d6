"""The images of a training: a split in memory, or decoded as batches need them."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.data.loading import batches
from openbench.data.sources.items import decode
from openbench.data.sources.transforms import cropped, stack
from openbench.errors import DataError
from openbench.training.augment.augmentations import Augmentation
from openbench.training.augment.reading import Reading

_READ = 512
Share = Callable[[int], slice]
# Decoded ImageNet would need 190 GB; CIFAR needs 0.15 GB.
MAX_BYTES = 8 << 30
_AHEAD = 3
Pixels = NDArray[np.uint8]


class ImageSet(ABC):
    """The images of a split as training reads them.

    Attributes:
        labels: (n,) int64, on the device.
        mean: (channels,) float32, same device, of images in [0, 1].
        std: (channels,) float32, same device.
        streams: whether images are read as batches need them, so that it helps to announce them early.
    """

    labels: Tensor
    mean: Tensor
    std: Tensor
    streams: bool = False

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def stored(self, rows: Tensor) -> Tensor:
        """Return the images at `rows` (b,) int64, (b, h, w, channels) uint8, not to be changed."""

    def plan(self, batches: Sequence[Tensor], seed: int, share: Share | None = None) -> None:  # noqa: B027
        """Announce the rows of the coming batches, so that reading may begin; by default nothing happens.

        Args:
            batches: rows (b,) int64 of each batch to come.
            seed: of what is drawn as an image is read.
            share: number of images in a batch → this process's part; the others may come as black. None: all.
        """

    def augmented(self, rows: Tensor, augment: Sequence[Augmentation], generator: torch.Generator) -> Tensor:
        """Return the images at `rows`, (b, h, w, channels) uint8, augmented.

        Args:
            rows: (b,) int64.
            augment: applied in order.
            generator: what the augmentations draw from.
        """
        images = self.stored(rows)
        for augmentation in augment:
            images = augmentation(images, generator)
        return images

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return (x/255 − μ)/σ, (b, channels, h, w) float32, channels last in memory.

        Args:
            pixels: (b, h, w, channels) uint8.
        """
        # As one product and one difference on the batch.
        scaled = pixels.to(torch.float32).mul_(1 / (255 * self.std)).sub_(self.mean / self.std)
        return scaled.permute(0, 3, 1, 2)

    def images(self, rows: Tensor) -> Tensor:
        """Return the images at `rows` (b,) int64, (b, channels, h, w) float32, normalised."""
        return self.normalised(self.stored(rows))

    def clean(self, batch_size: int = _READ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (images, labels, rows) of all images in order, without augmentation; rows stay on the CPU."""
        for start in range(0, len(self), batch_size):
            rows = torch.arange(start, min(start + batch_size, len(self)))
            yield self.images(rows), self.labels[start : start + batch_size], rows


@dataclass(frozen=True, eq=False)
class ImagesInMemory(ImageSet):
    """All images as one array, resized and cropped.

    Args:
        pixels: (n, h, w, channels) uint8.
        labels: (n,) int64, on the same device.
        mean: (channels,) float32, same device.
        std: (channels,) float32, same device.
    """

    pixels: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def stored(self, rows: Tensor) -> Tensor:
        """Return a copy of rows of the array."""
        return self.pixels[rows.to(self.pixels.device)]


def load_images(split: Split, preprocess: Preprocess, device: torch.device, workers: int = 0) -> ImagesInMemory:
    """Return a split's images in memory, with the same geometry as in evaluation.

    Args:
        split: what is read.
        preprocess: its resize and crop are applied here, its mean and std batch by batch.
        device: where the array lies.
        workers: what decodes images; see data.loading.

    Raises:
        DataError: an image cannot be read.
    """
    channels = preprocess.channels
    in_unit_range = replace(preprocess, mean=(0.0,) * channels, std=(1.0,) * channels)
    parts = [
        images.mul(255).round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        for images in batches(split, in_unit_range, _READ, workers)
    ]
    return ImagesInMemory(torch.cat(parts).to(device), *labels_and_scale(split, preprocess, device))


def labels_and_scale(split: Split, preprocess: Preprocess, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels (n,) int64, mean and std (channels,) float32 on a device."""
    scale = [torch.tensor(values, dtype=torch.float32, device=device) for values in (preprocess.mean, preprocess.std)]
    return torch.from_numpy(split.labels.copy()).to(device), scale[0], scale[1]


class StreamedImages(ImageSet):
    """Images that are read once a plan announces them, with a random geometry; without a plan, as in evaluation.

    The draws for an image depend on the plan's seed and the image's place in it, so neither the number of threads nor
    their order changes a pixel.

    Args:
        split: what is read.
        preprocess: size and channels; geometry where nothing is drawn.
        device: where batches go.
        workers: threads that decode (which releases Python's lock); at least one.
        reading: the random geometry; None: that of evaluation.
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
        self._coming: deque[tuple[Tensor, slice, int]] = deque()  # rows, this process's share, place of the first
        self._begun: deque[tuple[Tensor, slice, list[Future[Pixels]]]] = deque()
        self._seed = 0

    def __len__(self) -> int:
        return len(self._split)

    def plan(self, batches: Sequence[Tensor], seed: int, share: Share | None = None) -> None:
        """Begin to read the first batches; each that is taken makes room for another."""
        for future in (future for _, _, pixels in self._begun for future in pixels):
            future.cancel()
        self._begun.clear()
        starts = np.cumsum([0, *(len(rows) for rows in batches)])
        shares = [slice(0, len(rows)) if share is None else share(len(rows)) for rows in batches]
        self._coming = deque(zip(batches, shares, map(int, starts), strict=False))
        self._seed = seed
        self._fill()

    def stored(self, rows: Tensor) -> Tensor:
        """Return the next batch of the plan if these are its rows, else read them as in evaluation."""
        if not self._begun or not torch.equal(self._begun[0][0], rows):
            return self._batch(list(self._pool.map(self._plainly, rows.tolist()))).to(self.labels.device)
        _, share, pixels = self._begun.popleft()
        self._fill()
        images = self._batch([future.result() for future in pixels])
        if len(images) < len(rows):
            whole = images.new_zeros((len(rows), *images.shape[1:]))
            whole[share] = images
            images = whole
        return images.to(self.labels.device)

    def _fill(self) -> None:
        while self._coming and len(self._begun) < _AHEAD:
            rows, share, start = self._coming.popleft()
            places = range(*share.indices(len(rows)))
            self._begun.append((rows, share, [self._pool.submit(self._drawn, int(rows[i]), start + i) for i in places]))

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

    def _batch(self, images: list[Pixels]) -> Tensor:
        """Return images as (b, side, side, channels); grey is copied into every channel."""
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
        reading: the random geometry; None: that of evaluation.
    """
    bytes_needed = len(split) * preprocess.channels * preprocess.crop**2
    if reading is None and bytes_needed <= MAX_BYTES:
        return load_images(split, preprocess, device, workers)
    return StreamedImages(split, preprocess, device, workers, reading)
