"""Images as callers hand them over: PIL pictures, arrays, tensors, lists of them, and data sets with labels."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor

from openbench.core.benchmark import Image, Items, Split
from openbench.core.request import Role
from openbench.data.sources.items import DEEP, UNREADABLE
from openbench.digest import bytes_sha256
from openbench.errors import ConfigError, DataError

_WAYS = (
    "a PIL image, a uint8 array (h, w) or (h, w, 3), a uint8 tensor (h, w) or (3, h, w), or several of them as a list, "
    "an array (n, h, w, 3) or a tensor (n, 3, h, w)"
)
_DATA = (
    f"{_WAYS}; with labels: a data set of (image, label) pairs, or the pair (images, labels). Give the images as they "
    "are decoded: the detector's preprocess does the rest"
)
_NO_LIST = (str, bytes, dict)
_DIGEST = 16  # bytes kept of an image's SHA-256
_UNKNOWN = -1


def as_pixels(image: Any, where: str = "image") -> Image:
    """Return one image as pixels (h, w) or (h, w, 3) uint8.

    Args:
        image: of PIL, an array, or a tensor with its channels first.
        where: its name in messages.

    Raises:
        DataError: something else, or values that are not uint8.
    """
    if isinstance(image, Pillow.Image):
        if image.mode.startswith(DEEP):
            raise DataError(
                f"{where} has more than 8 bits per pixel (mode {image.mode}) — nothing says what is black and what is "
                "white — scale it to 0…255 and give it as 8-bit grey"
            )
        try:
            pixels = np.asarray(image if image.mode in ("RGB", "L") else image.convert("RGB"))
        except UNREADABLE as error:
            raise DataError(f"{where} cannot be decoded — {error} — get its file again, or leave it out") from error
        if 0 in pixels.shape:
            raise DataError(f"{where} has no pixels — found {image.width}×{image.height}")
        return pixels
    if isinstance(image, Tensor):
        pixels = image.detach().cpu().numpy()
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 and pixels.shape[0] in (1, 3) else pixels
    elif isinstance(image, np.ndarray):
        pixels = image
    else:
        raise DataError(f"{where} is a {type(image).__name__} — allowed: {_WAYS}")
    if pixels.dtype != np.uint8:
        raise DataError(
            f"{where} has values of type {pixels.dtype} — uint8 pixels from 0 to 255 expected, since the detector's "
            "own preprocess scales and normalises — give the image without its transform, or (255 * x).round() as uint8"
        )
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)) or 0 in pixels.shape:
        raise DataError(f"{where} has the shape {tuple(image.shape)} — allowed: {_WAYS}")
    return pixels


def as_list(images: Any) -> tuple[Sequence[Any], bool]:
    """Return the images of a call, and whether it was a single one.

    Args:
        images: one image, or several as a list, an array or a tensor.

    Raises:
        DataError: something else, no image at all, or one colour image with its channels at the wrong end, whose rows
            would be taken for images.
    """
    if isinstance(images, Pillow.Image):
        return [images], True
    single = False
    if isinstance(images, np.ndarray | Tensor):
        first = isinstance(images, Tensor)
        ours, other = (0, 2) if first else (2, 0)
        colour = images.ndim == 3 and images.shape[ours] in (1, 3)
        if images.ndim == 3 and not colour and images.shape[other] in (1, 3):
            raise DataError(
                f"images is one {'tensor' if first else 'array'} of shape {tuple(images.shape)}, with the channels "
                f"{'last' if first else 'first'} — allowed: {_WAYS} — move that axis, or give grey images as a list"
            )
        single = images.ndim == 2 or colour
    elif isinstance(images, _NO_LIST) or not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        raise DataError(f"images is a {type(images).__name__} — allowed: {_WAYS}")
    found = [images] if single else images
    if not len(found):
        raise DataError(f"images is empty — at least one image expected: {_WAYS}")
    return found, single


class GivenItems:
    """The images of a list or data set, made into pixels when they are read; the digest of each is then noted.

    Args:
        source: of images, or of (image, label) pairs.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.digests: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Image:
        item = self.source[index]
        pixels = as_pixels(item[0] if _is_pair(item) else item, f"image {index}")
        self.digests[index] = image_digest(pixels)
        return pixels


def image_digest(pixels: Image) -> NDArray[np.uint8]:
    """Return the first 16 bytes of a digest of an image's shape and pixels, (16,) uint8."""
    content = f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).tobytes()
    return np.frombuffer(bytes.fromhex(bytes_sha256(content)[: 2 * _DIGEST]), dtype=np.uint8)


def digests_of(items: Items) -> NDArray[np.uint8]:
    """Return the digests (n, 16) uint8 of images; those that were read before are not read again."""
    given = items if isinstance(items, GivenItems) else GivenItems(items)
    for index in range(len(given)):
        if index not in given.digests:
            given[index]
    return np.stack([given.digests[index] for index in range(len(given))])


def as_split(given: Any, role: Role, classes: Sequence[str]) -> Split:
    """Return what a caller hands over for fitting or calibration as a split, with labels where there are some.

    Args:
        given: images, (images, labels), a data set of images or of (image, label) pairs, or a split.
        role: what the images are for.
        classes: names of the classes; labels that are names are found among them.

    Raises:
        DataError: something else, or labels that do not fit.
    """
    if isinstance(given, Split):
        return given
    where = str(role).replace("_", " ")
    labels: Any = None
    if isinstance(given, tuple) and len(given) == 2 and not _is_pair(given):
        given, labels = given
    if isinstance(given, Mapping) or not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
        raise DataError(f"{where} images: found a {type(given).__name__} — allowed: {_DATA}")
    source, _ = as_list(given)
    if labels is None:
        labels = _labels_in(source)
    found = _as_labels(labels, len(source), classes, where)
    return Split(
        name="given",
        role=role,
        items=GivenItems(source),
        labels=found,
        keys=range(len(source)),  # type: ignore[arg-type]  # read for messages only
        classes=tuple(classes),
        digest=secrets.token_hex(16),  # the images have not been read, so nothing may count as equal
        expected=len(source),
    )


def names_of(classes: Any) -> tuple[str, ...]:
    """Return the names of classes as a caller gives them.

    Raises:
        ConfigError: no list of names.
    """
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise ConfigError(f"classes — found {classes!r} — allowed: a list of names in the order of the logits")
    return tuple(map(str, classes))


@cache
def numbered(count: int) -> tuple[str, ...]:
    """Return names for classes that have none: their numbers."""
    return tuple(map(str, range(count)))


def _is_pair(item: Any) -> bool:
    """Whether this is an image with its label."""
    pair = isinstance(item, tuple | list) and len(item) == 2
    return pair and np.ndim(item[1]) == 0 and not isinstance(item[1], Pillow.Image)


def _labels_in(source: Any) -> Any:
    """The labels that a data set brings; None where it has none."""
    for name in ("targets", "labels"):
        held = getattr(source, name, None)
        if held is not None and not callable(held) and len(held) == len(source):
            return held
    if isinstance(source, np.ndarray | Tensor) or not _is_pair(source[0]):
        return None
    return [source[index][1] for index in range(len(source))]


def _as_labels(labels: Any, n: int, classes: Sequence[str], where: str) -> NDArray[np.int64]:
    """Labels (n,) int64; −1 throughout where there are none."""
    if labels is None:
        return np.full(n, _UNKNOWN, dtype=np.int64)
    found = np.asarray(labels.detach().cpu() if isinstance(labels, torch.Tensor) else labels)
    if found.dtype.kind in "UO" and classes:
        places = {name: index for index, name in enumerate(classes)}
        unknown = sorted({str(name) for name in found.ravel() if str(name) not in places})
        if unknown:
            raise DataError(f"{where} images: label '{unknown[0]}' is not among the classes {', '.join(classes)}")
        found = np.asarray([places[str(name)] for name in found.ravel()])
    if found.shape != (n,) or found.dtype.kind not in "iu":
        raise DataError(
            f"{where} images: {n} images and labels of shape {found.shape} and type {found.dtype} — one class number "
            "per image expected"
        )
    if found.min() < 0 or (classes and found.max() >= len(classes)):
        most = len(classes) - 1 if classes else "the number of classes less one"
        raise DataError(f"{where} images: labels from {found.min()} to {found.max()} — allowed: 0 to {most}")
    return found.astype(np.int64)
