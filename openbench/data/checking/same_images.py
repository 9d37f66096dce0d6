"""Leakage of images: the same file or row in two splits that must not share any, found without decoding."""

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate, combinations, product

import numpy as np

from openbench.core.benchmark import Benchmark, Items, Split
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import JoinedItems
from openbench.data.checking.verify import must_differ
from openbench.data.dataset import SetConfig
from openbench.data.manifests import Manifest
from openbench.data.own.images import EncodedItems
from openbench.data.sources.items import ArrayItems, FileItems
from openbench.errors import LeakageError


def refuse_same_images(benchmark: Benchmark) -> None:
    """Check that no image is both ID and OOD, or both tested and learnt or tuned from.

    Two images are the same if they are the same file, or the same row of one array or Arrow folder; files of the user's
    own also if their bytes are equal. Nothing is decoded: `check` finds equal images in two published files. For sets
    that nothing reads see `refuse_listed_images`.

    Raises:
        LeakageError: an image is in two such splits.
    """
    places = [(split, _places(split.items)) for split in benchmark.splits() if not split.unread]
    for (a, first), (b, second) in combinations(places, 2):
        if not must_differ(a.role, b.role):
            continue
        shared = [position for place, position in second.items() if place in first]
        if shared:
            raise _leak(benchmark.name, (a, b), sorted({b.keys[position] for position in shared}))


def refuse_listed_images(benchmark: Benchmark, config: BenchmarkConfig) -> None:
    """Check that no image of a set that nothing reads is tested or tuned on: a network may have learnt from it.

    The lists of sets with the same sources are compared, without the images. A rule has no list.

    Args:
        benchmark: the benchmark.
        config: its config.

    Raises:
        LeakageError: an image of the list is tested or tuned on.
    """
    if not any(split.unread for split in benchmark.splits()):
        return
    sets = [(entry.role, SetConfig.from_node(entry.node, f"benchmark.{entry.path}")) for entry in config.sets]
    for split in (split for split in benchmark.splits() if split.unread):
        for (role, unread), (other, tested) in product(sets, sets):
            if role == split.role and must_differ(role, other) and unread.sources == tested.sources:
                keys = {key for one in benchmark.of_role(other) for key in one.keys}
                shared = sorted(keys.intersection(_keys(unread)).intersection(_keys(tested)))
                if shared:
                    raise _leak(benchmark.name, (split, benchmark.of_role(other)[0]), shared)


def _keys(config: SetConfig) -> Sequence[str]:
    """The keys of a set's list; none for a rule."""
    listing = config.listing()
    return listing.keys if isinstance(listing, Manifest) else ()


def _leak(name: str, sides: tuple[Split, Split], shared: Sequence[str]) -> LeakageError:
    (a, b), images = sides, f"{len(shared):,} images" if len(shared) > 1 else "1 image"
    return LeakageError(
        f"benchmark '{name}': {a.role} {a.name} and {b.role} {b.name} have {images} in common, e.g. '{shared[0]}' — "
        "remove them from one list: images that are learnt or tuned from must not be tested, and none is ID and OOD"
    )


def _places(items: Items) -> Mapping[object, int]:
    """The position of each image by its file, row or bytes; empty for other items."""
    if isinstance(items, JoinedItems):
        starts = accumulate((len(part) for part in items.parts), initial=0)
        parts = zip(starts, map(_places, items.parts), strict=False)
        return {place: start + position for start, places in parts for place, position in places.items()}
    if isinstance(items, ArrayItems):
        start = items.pixels.__array_interface__["data"][0]
        return {(start, int(row)): position for position, row in enumerate(np.asarray(items.rows))}
    if isinstance(items, EncodedItems):
        return {items.contents[row].tobytes(): position for position, row in enumerate(items.rows)}
    if not isinstance(items, FileItems):
        return {}
    real = {folder: os.path.realpath(folder) for folder in set(map(os.path.dirname, items.files))}
    paths = {
        os.path.join(real[os.path.dirname(path)], os.path.basename(path)): position
        for position, path in enumerate(items.files)
    }
    contents = {} if items.contents is None else {row.tobytes(): i for i, row in enumerate(items.contents)}
    return {**paths, **contents}
