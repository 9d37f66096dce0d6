"""Reading of training images: random crops at the size of the network, and versions that others prepared."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench import paths
from openbench.config.constraints import Checked, Positive, Share
from openbench.core.preprocess import Preprocess
from openbench.data.loading import cropped
from openbench.data.own.images import contents_of, digest_of
from openbench.data.sources.base import decode
from openbench.digest import digest
from openbench.errors import DataError

_TRIES = 10
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


class Reading(Checked, ABC):
    """Gives a stored image the network's size at random, in place of evaluation's resize and crop.

    Final subclasses are frozen dataclasses; their fields enter the checkpoint's digest.

    Attributes:
        version: raised when a change alters the images that come out; it enters that digest, too.
    """

    version: ClassVar[int] = 1

    def replaced(self, key: str, rng: np.random.Generator) -> Path | None:
        """Return a file to read instead of the image with a key; None (the default) for the image itself."""
        return None

    @abstractmethod
    def __call__(self, image: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return an image of the wanted size.

        Args:
            image: (h, w) or (h, w, 3) uint8, not to be changed.
            side: of the result, (side, side) or (side, side, 3).
            rng: for this image alone.
        """


@dataclass(frozen=True)
class RandomResizedCrop(Reading):
    """Returns a part of random area and aspect at a uniformly random place, resized bilinearly.

    Area is uniform in `scale` times the image's, log aspect uniform in log `ratio`. After ten draws that do not fit,
    the largest central part whose aspect is in `ratio` is taken.

    Args:
        scale: least and largest share of the area; 0.08 and 1.
        ratio: least and largest width / height; 3/4 and 4/3.

    Reference:
        Szegedy et al.: Going deeper with convolutions, CVPR 2015, arXiv:1409.4842, section 6; drawn as in
        torchvision.transforms.v2.RandomResizedCrop.
    """

    scale: tuple[Share, Share] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        """Check the order; lists from yaml become tuples."""
        for name in ("scale", "ratio"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            self.require(values[0] <= values[1], name, "two numbers, first ≤ second")

    def __call__(self, image: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return a resized part."""
        top, left, height, width = self.part(image.shape[0], image.shape[1], rng)
        # Cut first: Pillow's own `box` would let the filter see pixels beyond the part's edge.
        picture = Pillow.fromarray(np.ascontiguousarray(image[top : top + height, left : left + width]))
        return np.asarray(picture.resize((side, side), Pillow.Resampling.BILINEAR))

    def part(self, height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Return top, left, height, width of a random part of an image."""
        low, high = (math.log(value) for value in self.ratio)
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            aspect = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
        w = min(width, round(height * self.ratio[1]))
        h = min(height, round(width / self.ratio[0]))
        return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True)
class PictureFolder:
    """Pictures in a folder and those below it.

    Args:
        name: the folder, below one of those in OPENBENCH_DATA or ./data; the digest has its name, not its place.
        content: digest of the names and bytes of its files, 16 hex digits, so that other pictures make another
            training. The error for a wrong digest names the right one.
    """

    name: str
    content: str

    def find(self) -> Path | None:
        """Return the path of the folder, None if it is missing."""
        return next((root / self.name for root in paths.data_roots() if (root / self.name).is_dir()), None)

    def path(self) -> Path:
        """Return the path of the folder.

        Raises:
            DataError: it is missing.
        """
        path = self.find()
        if path is None:
            roots = ", ".join(map(str, paths.data_roots()))
            raise DataError(f"folder '{self.name}' of pictures is missing in {roots} — put it there, or name another")
        return path

    def files(self) -> tuple[Path, ...]:
        """Return the pictures in the order of their names.

        Raises:
            DataError: there are none, or their digest is not `content`.
        """
        folder = self.path()
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
        content = digest([[file.relative_to(folder).as_posix() for file in files], digest_of(contents_of(files))])
        if not files or content != self.content:
            raise DataError(
                f"the {len(files):,} pictures in folder '{folder}' have content {content} instead of {self.content} — "
                f"get the pictures again, or set content={content} if these are meant"
            )
        return tuple(files)

    def pictures(self, side: int) -> NDArray[np.uint8]:
        """Return all pictures, the shorter side resized and the centre cropped, (m, side, side, 3) uint8."""
        return _pictures(self, self.path(), side)


@lru_cache(maxsize=2)
def _pictures(folder: PictureFolder, place: Path, side: int) -> NDArray[np.uint8]:
    crops = (cropped(decode(file), Preprocess(side, side)) for file in folder.files())
    return np.stack([np.repeat(crop[..., None], 3, axis=2) if crop.ndim == 2 else crop for crop in crops])


def picture_folders(value: Any) -> Iterator[PictureFolder]:
    """Yield the picture folders in the fields of a training method and of its parts."""
    if isinstance(value, PictureFolder):
        yield value
    elif is_dataclass(value):
        yield from picture_folders([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from picture_folders(part)


@dataclass(frozen=True)
class PreparedVersions(Reading):
    """Reads an image or, at equal odds, its counterpart in one of several folders of the same tree.

    The authors train on all sets joined. Here an epoch is as long as one set, however many sets there are, so the same
    number of epochs takes the same number of steps.

    Args:
        folders: each holds `<rest of the key>` for every training image, under the same or another picture suffix.
        strip: what the training split's keys begin with and the folders leave out, e.g. `imagenet_1k/train/`.
        then: the random geometry after that; None: the shorter side resized, the centre cropped.

    Reference:
        DeepAugment: Hendrycks et al., The Many Faces of Robustness, ICCV 2021, arXiv 2006.16241. Stylized-ImageNet:
        Geirhos et al., ImageNet-trained CNNs are biased towards texture, ICLR 2019, arXiv 1811.12231.
    """

    folders: Annotated[tuple[PictureFolder, ...], MinLen(1)]
    strip: str = ""
    then: Reading | None = None

    def __post_init__(self) -> None:
        """Turn a list from yaml into a tuple."""
        object.__setattr__(self, "folders", tuple(self.folders))

    def replaced(self, key: str, rng: np.random.Generator) -> Path | None:
        """Return the path of the counterpart, or None for the image itself.

        Raises:
            DataError: a folder lacks it.
        """
        which = int(rng.integers(len(self.folders) + 1))
        if which == len(self.folders):
            return None
        if not key.startswith(self.strip):
            raise DataError(f"the key of training image '{key}' does not begin with '{self.strip}' — correct `strip`")
        folder = self.folders[which]
        path = folder.path() / key.removeprefix(self.strip)
        versions = [path] if path.is_file() else sorted(path.parent.glob(f"{path.stem}.*"))
        if not versions:
            raise DataError(f"'{folder.name}' has no version '{path}' of training image '{key}' — correct `strip`")
        return versions[0]

    def __call__(self, image: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the image at the network's size."""
        return cropped(image, Preprocess(side, side)) if self.then is None else self.then(image, side, rng)
