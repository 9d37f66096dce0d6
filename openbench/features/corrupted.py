"""The images of a split as a common corruption leaves them, in the network's crop where that is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from openbench.core.benchmark import Image, Items, Split
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Corruption
from openbench.data.sources.imagenet_c import KINDS, corrupt
from openbench.data.sources.transforms import cropped
from openbench.digest import digest
from openbench.errors import check_choice


def check_corruption(corruption: Corruption, where: str) -> None:
    """Check that a corruption is one of ImageNet-C's fifteen.

    Raises:
        ConfigError: it is not.
    """
    check_choice(f"{where}: corruption", corruption.kind, KINDS)


def corrupted(split: Split, corruption: Corruption, preprocess: Preprocess) -> Split:
    """Return a split whose images are corrupted when they are read; the draw of each depends on its key only.

    Args:
        split: as it is.
        corruption: kind and severity.
        preprocess: of the network: strengths are in pixels of its crop, which is taken first. A transform of the
            user's own, which may crop what it is given, is left to take its crop of a whole corrupted image; strengths
            are then in pixels of that image.

    Raises:
        ConfigError: no such corruption.
    """
    check_corruption(corruption, f"split '{split.name}'")
    crop = replace(preprocess, resize=preprocess.crop) if split.as_stored else preprocess
    geometry = None if isinstance(preprocess, OwnPreprocess) else crop
    return replace(
        split,
        items=_Corrupted(split.items, split.keys, corruption, geometry),
        digest=digest({"of": split.digest, "corruption": corruption, "crop": geometry, **_raised()}),
        as_stored=True,
    )


def _raised() -> dict[str, int]:
    """The version of the corruptions, once it is above 1: copies made by an earlier one are others."""
    return {} if Corruption.version == 1 else {"version": Corruption.version}


@dataclass(frozen=True, eq=False)
class _Corrupted:
    """Items that are corrupted when read."""

    clean: Items
    keys: Sequence[str]
    corruption: Corruption
    geometry: Preprocess | None

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> Image:
        rng = np.random.default_rng(int(digest((self.corruption, self.keys[index])), 16))
        whole = self.clean[index]
        image = whole if self.geometry is None else cropped(whole, self.geometry)
        return corrupt(image, self.corruption.kind, self.corruption.severity, rng)
