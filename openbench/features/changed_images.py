"""Splits whose images are changed when they are read: by a common corruption, or mixed with those of another split."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.core.benchmark import Image, Items, Split
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Corruption, Field, Mixing, Request
from openbench.data.sources.imagenet_c import KINDS, corrupt
from openbench.data.sources.transforms import cropped
from openbench.digest import digest
from openbench.errors import check_choice

MIXED_READ = Request(fields=frozenset({Field.FEATURES}))  # of mixed images


def check_corruption(corruption: Corruption, where: str) -> None:
    """Check that a corruption is one of ImageNet-C's fifteen.

    Raises:
        ConfigError: it is not.
    """
    check_choice(f"{where}: corruption", corruption.kind, KINDS)


def corrupted(split: Split, corruption: Corruption, preprocess: Preprocess) -> Split:
    """Return a split whose images are corrupted when they are read; the draws depend on the image's key only.

    Args:
        split: as it is.
        corruption: kind and severity.
        preprocess: of the network: strengths are in pixels of its crop, which is taken first. A transform of the
            user's own may crop by itself: it gets the whole corrupted image, and strengths are in pixels of that.

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
    """Return the version of the corruptions, once it is above 1, for the digest of the copies."""
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


def mixed(split: Split, others: Split, mixing: Mixing, preprocess: Preprocess) -> Split:
    """Return a split whose images are mixed when they are read; the draws depend on the image's key only.

    Args:
        split: as it is.
        others: the images to mix with.
        mixing: the shares of an image that are left.
        preprocess: of the network; its crops are mixed, and rounded to 8 bits. A transform of the user's own may crop
            by itself: it gets the whole image, mixed with another in its size.
    """
    first, second = (
        replace(preprocess, resize=preprocess.crop) if s.as_stored else preprocess for s in (split, others)
    )
    geometry = None if isinstance(preprocess, OwnPreprocess) else (first, second)
    return replace(
        split,
        items=_Mixed(split.items, split.keys, others.items, mixing, geometry),
        digest=digest({"of": split.digest, "with": others.digest, "mixing": mixing, "crops": geometry}),
        as_stored=True,
    )


@dataclass(frozen=True, eq=False)
class _Mixed:
    """Items that are mixed when read."""

    clean: Items
    keys: Sequence[str]
    others: Items
    mixing: Mixing
    geometry: tuple[Preprocess, Preprocess] | None

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> Image:
        rng = np.random.default_rng(int(digest((self.mixing.seed, self.keys[index])), 16))
        other = self.others[int(rng.integers(len(self.others)))]
        share = self.mixing.shares[int(rng.integers(len(self.mixing.shares)))]
        first, second = _same_channels(*self._sized(self.clean[index], other))
        mixture: NDArray[np.uint8] = np.rint(share * first + (1 - share) * second).astype(np.uint8)
        return mixture

    def _sized(self, image: Image, other: Image) -> tuple[Image, Image]:
        """Return an image, and another one in its size."""
        if self.geometry is not None:
            return cropped(image, self.geometry[0]), cropped(other, self.geometry[1])
        height, width = image.shape[:2]
        picture = Pillow.fromarray(np.ascontiguousarray(other))
        return image, np.asarray(picture.resize((width, height), Pillow.Resampling.BILINEAR))


def _same_channels(first: Image, second: Image) -> tuple[Image, Image]:
    """Return two crops with as many channels: of a grey and a coloured one the grey one is repeated in three."""
    if first.ndim == second.ndim:
        return first, second
    grey = np.stack([first if first.ndim == 2 else second] * 3, axis=-1)
    return (grey, second) if first.ndim == 2 else (first, grey)
