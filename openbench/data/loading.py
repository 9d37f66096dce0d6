"""Images as network input: resized, cropped and normalised as by torchvision, bit for bit, in batches.

Batches come in manifest order, prepared by threads while the network computes.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from openbench.core.benchmark import Image, RowItems, Split
from openbench.core.preprocess import OwnPreprocess, OwnTransform, Preprocess
from openbench.errors import DataError

# Batches in flight while the network computes: one being consumed next, one being prepared.
_AHEAD = 2
_FILTERS = {
    "nearest": Pillow.Resampling.NEAREST,
    "bilinear": Pillow.Resampling.BILINEAR,
    "bicubic": Pillow.Resampling.BICUBIC,
}


def apply(image: Image, preprocess: Preprocess) -> Tensor:
    """Return one image as the network sees it, (channels, crop, crop) float32."""
    return normalise(cropped(image, preprocess)[None], preprocess)[0]


def prepared(image: Image, preprocess: Preprocess) -> NDArray[Any]:
    """Return an image in the network's size: uint8 pixels, or float32 (c, h, w) from a transform of the user's own.

    Raises:
        DataError: the transform fails, or does not return a tensor (c, h, w).
    """
    if not isinstance(preprocess, OwnPreprocess) or preprocess.own is None:
        return cropped(image, preprocess)
    return transformed(image, preprocess.own)


def transformed(image: Image, own: OwnTransform) -> NDArray[np.float32]:
    """Return an image after a transform of the user's own, (channels, h, w) float32.

    Raises:
        DataError: the transform fails, or does not return a tensor (c, h, w).
    """
    picture = Pillow.fromarray(np.ascontiguousarray(image)).convert(own.mode)
    try:
        made = own(picture)
    except Exception as error:  # the user's code may raise anything
        raise DataError(
            f"preprocess fails on a {own.mode} image of {picture.width}×{picture.height} pixels: "
            f"{type(error).__name__}: {error} — it must take a PIL image and return a tensor (channels, h, w)"
        ) from error
    if not isinstance(made, Tensor) or made.ndim != 3:
        kind = f"tensor {tuple(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise DataError(f"preprocess returns a {kind}, not a tensor (channels, h, w) — end it in ToTensor()")
    return made.detach().to("cpu", torch.float32).contiguous().numpy()


def cropped(image: Image, preprocess: Preprocess) -> NDArray[np.uint8]:
    """Return an image in the wanted channels, resized and centre-cropped, (crop, crop[, 3]) uint8.

    Grey stays a single plane: its copies into three channels would all be resized alike, so they are made last.
    """
    if image.ndim == 3 and preprocess.channels == 1:
        image = np.asarray(Pillow.fromarray(image).convert("L"))
    height, width = resized_shape(image.shape[0], image.shape[1], preprocess.resize)
    if (height, width) != image.shape[:2]:
        picture = Pillow.fromarray(np.ascontiguousarray(image))
        image = np.asarray(picture.resize((width, height), _FILTERS[preprocess.interpolation]))
    return centre_crop(image, preprocess.crop)


def channel_statistics(images: Iterable[Image]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each channel over all pixels of images, (3,) in [0, 1]."""
    sums, squares, pixels = np.zeros(3), np.zeros(3), 0
    for image in images:
        colour = (np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image) / 255.0
        sums += colour.sum(axis=(0, 1))
        squares += (colour**2).sum(axis=(0, 1))
        pixels += image.shape[0] * image.shape[1]
    mean = sums / pixels
    return mean, np.sqrt(np.maximum(squares / pixels - mean**2, 0.0))


def resized_shape(height: int, width: int, resize: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) after resizing: the shorter side becomes `resize`, the longer one is rounded down."""
    if not isinstance(resize, int):
        return resize
    short, long = min(height, width), max(height, width)
    if short == resize:
        return height, width
    scaled = int(resize * long / short)
    return (resize, scaled) if height <= width else (scaled, resize)


def centre_crop(image: Image, side: int) -> NDArray[np.uint8]:
    """Return the central (side, side) part; a smaller image is first padded with black, an odd row at the far end."""
    height, width = image.shape[:2]
    if height < side or width < side:
        down, right = max(side - height, 0), max(side - width, 0)
        pads = [(down // 2, (down + 1) // 2), (right // 2, (right + 1) // 2), (0, 0)]
        image = np.pad(image, pads[: image.ndim])
        height, width = image.shape[:2]
    top, left = round((height - side) / 2.0), round((width - side) / 2.0)
    return image[top : top + side, left : left + side]


def normalise(images: NDArray[np.uint8], preprocess: Preprocess) -> Tensor:
    """Return (x/255 − mean)/std per channel.

    Args:
        images: (b, h, w) or (b, h, w, 3) uint8; grey is copied into three channels if the network takes three.
        preprocess: gives mean and std.

    Returns:
        (b, channels, h, w) float32, contiguous.
    """
    planes = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    pixels = torch.from_numpy(np.ascontiguousarray(planes, dtype=np.float32)).div_(255)
    mean, std = _planes(tuple(preprocess.mean)), _planes(tuple(preprocess.std))
    if pixels.shape[1] != preprocess.channels:
        pixels = pixels.expand(-1, preprocess.channels, -1, -1).clone()
    return pixels.sub_(mean).div_(std)


@cache
def _planes(values: tuple[float, ...]) -> Tensor:
    """A number for each channel, (channels, 1, 1); only read."""
    return torch.tensor(values, dtype=torch.float32)[:, None, None]


def stack(images: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return equally sized crops as one array; grey ones are copied into three channels where others have colour.

    Raises:
        DataError: an image that is neither (h, w) nor (h, w, 3), or images that a transform leaves at several sizes.
    """
    if images[0].dtype != np.uint8:
        sizes = {image.shape for image in images}
        if len(sizes) > 1:
            raise DataError(f"preprocess returns tensors of {len(sizes)} shapes — add Resize and CenterCrop to it")
        return np.stack(images)
    for image in images:
        if image.ndim == 3 and image.shape[2] != 3:
            raise DataError(f"an image has shape {image.shape} — (h, w) or (h, w, 3) expected")
    if len(images) == 1:
        return images[0][None]
    if len({image.ndim for image in images}) > 1:
        images = [np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image for image in images]
    return np.stack(images)


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
