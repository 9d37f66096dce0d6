"""A split held in memory as one uint8 array, from which batches are cut, augmented and normalised at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.data.loading import batches
from openbench.errors import ConfigError
from openbench.training.augment import Augmentation

# Decoded ImageNet would need 190 GB; CIFAR needs 0.15 GB.
MAX_BYTES = 8 << 30
_READ = 512


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The images of a split, resized and cropped, not yet normalised.

    Args:
        pixels: (n, h, w, channels) uint8.
        labels: (n,) int64, on the same device.
        mean: (channels,) float32, same device, of images in [0, 1].
        std: (channels,) float32, same device.
    """

    pixels: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    def images(
        self, rows: Tensor, augment: Sequence[Augmentation] = (), generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the images at `rows`, (b, channels, h, w) float32, augmented and normalised, channels last in memory.

        Args:
            rows: (b,) int64.
            augment: applied in order, before normalisation.
            generator: what the augmentations draw from; needed if there are any.
        """
        chosen = self.pixels[rows.to(self.pixels.device)]
        for augmentation in augment:
            if generator is None:
                raise TypeError("ImageSet.images: augmentations draw from a generator — None given — pass one")
            chosen = augmentation(chosen, generator)
        # (x/255 − μ)/σ as one product and one difference on the batch.
        scaled = chosen.to(torch.float32).mul_(1 / (255 * self.std)).sub_(self.mean / self.std)
        return scaled.permute(0, 3, 1, 2)

    def clean(self, batch_size: int = _READ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (images, labels, rows) of all images in order, without augmentation; rows stay on the CPU."""
        for start in range(0, len(self), batch_size):
            rows = torch.arange(start, min(start + batch_size, len(self)))
            yield self.images(rows), self.labels[start : start + batch_size], rows


def hold(split: Split, preprocess: Preprocess, device: torch.device, workers: int = 0) -> ImageSet:
    """Return a split's images in memory, with the very geometry that evaluation gives them.

    Args:
        split: at most 8 GiB once decoded.
        preprocess: its resize and crop are applied here, its mean and std batch by batch.
        device: where the array lies.
        workers: what decodes images; see data.loading.

    Raises:
        ConfigError: the split is too large.
        DataError: an image cannot be read.
    """
    bytes_needed = len(split) * preprocess.channels * preprocess.crop**2
    if bytes_needed > MAX_BYTES:
        raise ConfigError(
            f"training holds its images in memory: {len(split):,} images of '{split.name}' at {preprocess.crop}×"
            f"{preprocess.crop} need {bytes_needed / 2**30:.0f} GiB — at most {MAX_BYTES >> 30} GiB are held — "
            "use a backbone with released weights for this benchmark"
        )
    channels = preprocess.channels
    in_unit_range = replace(preprocess, mean=(0.0,) * channels, std=(1.0,) * channels)
    parts = [
        images.mul(255).round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        for images in batches(split, in_unit_range, _READ, workers)
    ]
    return ImageSet(
        torch.cat(parts).to(device),
        torch.from_numpy(split.labels.copy()).to(device),
        torch.tensor(preprocess.mean, dtype=torch.float32, device=device),
        torch.tensor(preprocess.std, dtype=torch.float32, device=device),
    )
