"""Versions of the training images that others prepared with their own networks: DeepAugment, Stylized-ImageNet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from openbench.core.preprocess import Preprocess
from openbench.data.sources.transforms import cropped
from openbench.errors import DataError
from openbench.training.augment.picture_folder import PictureFolder
from openbench.training.augment.random_resize import Reading


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
        """Return the counterpart's file, or None for the image itself.

        Raises:
            DataError: a folder lacks it.
        """
        which = int(rng.integers(len(self.folders) + 1))
        if which == len(self.folders):
            return None
        if not key.startswith(self.strip):
            raise DataError(f"training image '{key}' — its key does not begin with strip '{self.strip}' — correct it")
        folder = self.folders[which]
        named = folder.path() / key.removeprefix(self.strip)
        found = named if named.is_file() else next(iter(sorted(named.parent.glob(f"{named.stem}.*"))), None)
        if found is None:
            raise DataError(
                f"folder '{folder.name}' has no version of training image '{key}' — '{named}' expected — get the "
                "folder again, or correct strip"
            )
        return found

    def __call__(self, image: NDArray[np.uint8], side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return the image at the network's size."""
        return cropped(image, Preprocess(side, side)) if self.then is None else self.then(image, side, rng)
