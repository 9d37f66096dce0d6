"""Images that a benchmark reads twice, from the same place of the same file: known without decoding any."""

import os
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from openbench.core.benchmark import Benchmark, Split
from openbench.data.items import ArrayItems, FileItems, FilesBelow
from openbench.data.verify import must_differ
from openbench.errors import LeakageError


def refuse_same_images(benchmark: Benchmark) -> None:
    """Check that no image stands on two sides: ID and OOD, or learnt or tuned from and tested.

    Images are the same here if they are the same file, or the same row of one array; that two files show the same is
    for `check` to find. Sets that nothing reads are left out.

    Raises:
        LeakageError: an image does.
    """
    places = [(split, _places(split)) for split in benchmark.splits() if not split.unread]
    for (a, first), (b, second) in combinations(places, 2):
        if not must_differ(a.role, b.role):
            continue
        shared = [position for place, position in second.items() if place in first]
        if shared:
            images = f"{len(shared):,} images" if len(shared) > 1 else "1 image"
            raise LeakageError(
                f"benchmark '{benchmark.name}': {a.role} {a.name} and {b.role} {b.name} have {images} in common, e.g. "
                f"'{b.keys[shared[0]]}' — what is learnt or tuned from must not be tested, and no image is both ID and "
                "OOD — take them out of one list"
            )


def _places(split: Split) -> Mapping[object, int]:
    """Position of each image by what tells where it is read from; empty where that is not known."""
    items = split.items
    if isinstance(items, ArrayItems):
        start = items.pixels.__array_interface__["data"][0]
        return {(start, int(row)): position for position, row in enumerate(np.asarray(items.rows))}
    if not isinstance(items, FileItems):
        return {}
    if isinstance(items.files, FilesBelow):
        folder = os.path.realpath(items.files.folder)
        return {f"{folder}/{relative}": position for position, relative in enumerate(items.files.relative)}
    return {os.path.realpath(path): position for position, path in enumerate(items.files)}
