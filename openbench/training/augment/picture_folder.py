"""Folders of pictures that an augmentation needs and that others prepared, found below the data folders."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.core.preprocess import Preprocess
from openbench.data.own.contents import contents_of, digest_of
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
        content: digest of the names and bytes of its files, 16 hex digits, so that other pictures make another
            training. The error for a wrong digest names the right one.
    """

    name: str
    content: str

    @property
    def places(self) -> list[Path]:
        """Where the folder may be."""
        return [root / self.name for root in paths.data_roots()]

    @property
    def is_there(self) -> bool:
        """Whether the folder is in one of its places."""
        return any(place.is_dir() for place in self.places)

    def path(self) -> Path:
        """Return where the folder is.

        Raises:
            DataError: it is not there.
        """
        found = next((place for place in self.places if place.is_dir()), None)
        if found is None:
            raise DataError(
                f"folder '{self.name}' of pictures for an augmentation is missing — searched: "
                f"{', '.join(map(str, self.places))} — put the pictures there, or name another folder"
            )
        return found

    def files(self) -> tuple[Path, ...]:
        """Return the pictures in the order of their names.

        Raises:
            DataError: there are none, or their digest is not `content`.
        """
        folder = self.path()
        files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
        found = digest([[file.relative_to(folder).as_posix() for file in files], digest_of(contents_of(files))])
        if not files or found != self.content:
            raise DataError(
                f"folder '{folder}' holds {len(files):,} pictures with content {found} — content {self.content} "
                f"expected — get the pictures again, or set content={found} if these are meant"
            )
        return tuple(files)

    def pictures(self, side: int) -> NDArray[np.uint8]:
        """Return all pictures, the shorter side resized and the centre cropped, (m, side, side, 3) uint8."""
        return _pictures(self, self.path(), side)


@lru_cache(maxsize=2)
def _pictures(folder: PictureFolder, place: Path, side: int) -> NDArray[np.uint8]:
    preprocess = Preprocess(side, side)
    crops = (cropped(decode(file), preprocess) for file in folder.files())
    return np.stack([np.repeat(crop[..., None], 3, axis=2) if crop.ndim == 2 else crop for crop in crops])


def picture_folders(value: Any) -> Iterator[PictureFolder]:
    """Yield the folders in the fields of a training method and of what it is made of."""
    if isinstance(value, PictureFolder):
        yield value
    elif is_dataclass(value):
        yield from picture_folders([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from picture_folders(part)
