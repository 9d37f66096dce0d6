"""Folders of pictures that an augmentation needs and that others prepared, found below the data folders."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.core.preprocess import Preprocess
from openbench.data.sources.items import decode
from openbench.data.sources.transforms import cropped
from openbench.digest import digest
from openbench.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True)
class PictureFolder:
    """Pictures in a folder and those below it.

    Args:
        name: the folder, below one of those in OPENBENCH_DATA or ./data; the digest has its name, not its place.
        content: digest of the names and sizes of its files, 16 hex digits, so that other pictures make another
            training. The error for a wrong digest names the right one.
    """

    name: str
    content: str

    def path(self) -> Path:
        """Return where the folder is.

        Raises:
            DataError: it is not there.
        """
        places = [root / self.name for root in paths.data_roots()]
        found = next((place for place in places if place.is_dir()), None)
        if found is None:
            raise DataError(
                f"folder '{self.name}' of pictures for an augmentation is missing — searched: "
                f"{', '.join(map(str, places))} — put the pictures there, or name another folder"
            )
        return found

    def files(self) -> tuple[Path, ...]:
        """Return the pictures in the order of their names.

        Raises:
            DataError: there are none, or their digest is not `content`.
        """
        return _files(self.path(), self.content)

    def pictures(self, side: int) -> NDArray[np.uint8]:
        """Return all pictures, the shorter side resized and the centre cropped, (m, side, side, 3) uint8."""
        return _pictures(self.files(), side)


@lru_cache(maxsize=8)
def _files(folder: Path, content: str) -> tuple[Path, ...]:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    found = digest([[file.relative_to(folder).as_posix(), file.stat().st_size] for file in files])
    if not files or found != content:
        raise DataError(
            f"folder '{folder}' holds {len(files):,} pictures with content {found} — content {content} expected — "
            f"get the pictures again, or set content={found} if these are meant"
        )
    return tuple(files)


@lru_cache(maxsize=2)
def _pictures(files: tuple[Path, ...], side: int) -> NDArray[np.uint8]:
    preprocess = Preprocess(side, side)
    crops = (cropped(decode(file), preprocess) for file in files)
    return np.stack([np.repeat(crop[..., None], 3, axis=2) if crop.ndim == 2 else crop for crop in crops])
