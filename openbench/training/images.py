"""The images that batches are taken from, whole batches at a time: a split held in memory, or read as it is needed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.data.loading import batches
from openbench.training.augment.base import Augmentation

_READ = 512
Share = Callable[[int], slice]


class ImageSet(ABC):
    """The images of a split as training reads them.

    Attributes:
        labels: (n,) int64, on the device.
        mean: (channels,) float32, same device, of images in [0, 1].
        std: (channels,) float32, same device.
        streams: whether images are read as they are needed, so that it helps to announce them early.
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
        """Announce the rows that will be asked for, batch by batch; by default nothing happens.

        Args:
            batches: rows (b,) int64 of each batch to come.
            seed: of what is drawn as an image is read.
            share: number of images in a batch → those that are wanted; the others may come as black. None: all.
        """

    def augmented(
        self, rows: Tensor, augment: Sequence[Augmentation] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the images at `rows`, (b, h, w, channels) uint8, augmented.

        Args:
            rows: (b,) int64.
            augment: applied in order.
            generator: what the augmentations draw from; needed if there are any.
        """
        chosen = self.stored(rows)
        for augmentation in augment:
            if generator is None:
                raise TypeError("ImageSet.images: augmentations draw from a generator — None given — pass one")
            chosen = augmentation(chosen, generator)
        return chosen

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return (x/255 − μ)/σ, (b, channels, h, w) float32, channels last in memory.

        Args:
            pixels: (b, h, w, channels) uint8.
        """
        # As one product and one difference on the batch.
        scaled = pixels.to(torch.float32).mul_(1 / (255 * self.std)).sub_(self.mean / self.std)
        return scaled.permute(0, 3, 1, 2)

    def images(
        self, rows: Tensor, augment: Sequence[Augmentation] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the images at `rows`, (b, channels, h, w) float32, augmented and normalised; arguments as above."""
        return self.normalised(self.augmented(rows, augment, generator))

    def clean(self, batch_size: int = _READ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (images, labels, rows) of all images in order, without augmentation; rows stay on the CPU."""
        for start in range(0, len(self), batch_size):
            rows = torch.arange(start, min(start + batch_size, len(self)))
            yield self.images(rows), self.labels[start : start + batch_size], rows


@dataclass(frozen=True, eq=False)
class HeldImages(ImageSet):
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


def hold(split: Split, preprocess: Preprocess, device: torch.device, workers: int = 0) -> HeldImages:
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
    return HeldImages(torch.cat(parts).to(device), *labels_and_scale(split, preprocess, device))


def labels_and_scale(split: Split, preprocess: Preprocess, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels (n,) int64, mean and std (channels,) float32 on a device."""
    scale = [torch.tensor(values, dtype=torch.float32, device=device) for values in (preprocess.mean, preprocess.std)]
    return torch.from_numpy(split.labels.copy()).to(device), scale[0], scale[1]
