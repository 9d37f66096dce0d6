"""A user's own images as a source of a data set, in any of the supported forms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from openbench.data.own.arrays import arrow_items, arrow_labels, is_arrow, npz
from openbench.data.own.listing import numbered, own_path
from openbench.data.sources.base import Found, ImageFolder, Source, rows_found
from openbench.data.sources.items import FileItems


@dataclass(frozen=True)
class OwnImages(Source):
    """The user's own images: a folder of files, a `.csv` that lists files, an `.npz`, or a Hugging Face folder.

    Keys are paths relative to the folder (to the `.csv`'s folder), or `<class>/<number>` for arrays.

    Args:
        path: absolute, or relative to a data root or the working directory.
        deviation: how these images differ from the set as published; own sets have no other version.
    """

    path: str
    deviation: str = ""

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """The path itself, or below each root and the working directory."""
        given = Path(self.path).expanduser()
        return [given] if given.is_absolute() else [*(root / given for root in roots), Path.cwd() / given]

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """The keys that are there; files are listed by folder, rows of arrays looked up by number and class."""
        if own_path(str(place.absolute())) is None:
            return None
        if place.is_file() and place.suffix != ".csv":
            pack = npz(place)
            rows = rows_found(pack.pixels, _rows(list(pack.labels), keys))
            return replace(rows, files=(place,), contents=pack.contents)
        if place.is_dir() and is_arrow(place):
            numbers = _rows(arrow_labels(place), keys)
            present = numbers >= 0
            if not present.any():
                return None
            items, files = arrow_items(place, numbers[present])
            return Found(items, present, files)
        found = ImageFolder().find(place.parent if place.is_file() else place, keys)
        return replace(found, files=found.items.files) if found and isinstance(found.items, FileItems) else found


def _rows(labels: list[str], keys: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    row_of = {key: row for row, (key, _) in enumerate(numbered(labels))}
    return np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)
