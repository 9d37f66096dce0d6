"""The images of a split, each mixed with an image of another split, in the network's crop."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from openbench.core.benchmark import Image, Items, Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Mixing, Request
from openbench.data.sources.transforms import cropped
from openbench.digest import digest

READ = Request(fields=frozenset({Field.FEATURES}))  # of mixed images


def mixed(split: Split, others: Split, mixing: Mixing, preprocess: Preprocess) -> Split:
    """Return a split whose images are mixed when they are read; the draws of each depend on its key only.

    Args:
        split: as it is.
        others: the images to mix with.
        mixing: how much is left of an image.
        preprocess: of the network; its crops are mixed, and rounded to 8 bits.
    """
    own, theirs = (replace(preprocess, resize=preprocess.crop) if s.as_stored else preprocess for s in (split, others))
    return replace(
        split,
        items=_Mixed(split.items, split.keys, others.items, mixing, (own, theirs)),
        digest=digest({"of": split.digest, "with": others.digest, "mixing": mixing, "crops": (own, theirs)}),
        as_stored=True,
    )


@dataclass(frozen=True, eq=False)
class _Mixed:
    """Items that are mixed when read."""

    clean: Items
    keys: Sequence[str]
    others: Items
    mixing: Mixing
    geometry: tuple[Preprocess, Preprocess]

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> Image:
        rng = np.random.default_rng(int(digest((self.mixing.seed, self.keys[index])), 16))
        other = self.others[int(rng.integers(len(self.others)))]
        share = self.mixing.shares[int(rng.integers(len(self.mixing.shares)))]
        kept, added = _alike(cropped(self.clean[index], self.geometry[0]), cropped(other, self.geometry[1]))
        found: NDArray[np.uint8] = np.rint(share * kept + (1 - share) * added).astype(np.uint8)
        return found


def _alike(first: Image, second: Image) -> tuple[Image, Image]:
    """Two crops with as many axes: a grey one beside a coloured one is repeated in three channels."""
    if first.ndim == second.ndim:
        return first, second
    grey = np.stack([first if first.ndim == 2 else second] * 3, axis=-1)
    return (grey, second) if first.ndim == 2 else (first, grey)
