"""Several data sets as one ID set: their images one after another, their label spaces side by side."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from openbench.core.benchmark import Image, Items, Split, canonical
from openbench.digest import digest
from openbench.errors import DataError


@dataclass(frozen=True, eq=False)
class JoinedItems:
    """The images of several sets, one set after another.

    Args:
        parts: the sets.
    """

    parts: Sequence[Items]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Image:
        items, position = self.located(index)
        return items[position]

    def located(self, index: int) -> tuple[Items, int]:
        """Return the set that an image is of, and its position there.

        Args:
            index: of the image among all, from 0.

        Raises:
            IndexError: there are fewer images.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        part = bisect_right(self._ends, index)
        return self.parts[part], index - (self._ends[part - 1] if part else 0)


def joined_classes(classes: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the class names of each set, none of them twice: a name that several sets have gets its set's name added.

    Args:
        classes: the class names of each set, by the set's name, in label order.
    """
    counts = Counter(canonical(name) for names in classes.values() for name in names)
    return {
        of: tuple(f"{name} ({of})" if counts[canonical(name)] > 1 else name for name in names)
        for of, names in classes.items()
    }


def join(parts: Mapping[str, Split], classes: Mapping[str, Sequence[str]]) -> Split:
    """Return several ID splits of one role as one split, whose labels count through all classes.

    Args:
        parts: by the set's name; the labels of each count its own classes.
        classes: what `joined_classes` returns; labels count in this order.

    Raises:
        DataError: no split for a set, or splits that reach the network in different ways.
    """
    lacking = [name for name in classes if name not in parts]
    if lacking:
        raise DataError(f"joined ID sets: no images for {', '.join(lacking)} — every set with classes needs some")
    splits = [parts[name] for name in classes]
    if len({split.as_stored for split in splits}) > 1:
        raise DataError("joined ID sets: some are used as stored, others are cropped — the same for all expected")
    starts = [0, *accumulate(len(names) for names in classes.values())]
    return replace(
        splits[0],
        name="+".join(split.name for split in splits),
        items=JoinedItems([split.items for split in splits]),
        labels=np.concatenate([split.labels + start for split, start in zip(splits, starts, strict=False)]),
        keys=[key for split in splits for key in split.keys],
        classes=tuple(name for names in classes.values() for name in names),
        digest=digest({"joined": [split.digest for split in splits]}),
        expected=sum(split.expected for split in splits),
        source=tuple(split.source for split in splits),
        deviations=tuple(f"{split.name}: {text}" for split in splits for text in split.deviations),
    )
