"""Small images decoded once: one memory-mapped array of bytes per split, kept beside the features."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from openbench.core.benchmark import Image, Items, Split
from openbench.data.items import ArrayItems, FileItems
from openbench.digest import digest

# Decoding a 64×64 JPEG takes longer than reading its 12 kB; beyond this side the arrays outgrow the files too far.
MAX_SIDE = 96
MAX_BYTES = 4 << 30
_PART = 512


def packed(split: Split, folder: Path, workers: int = 0, say: Callable[[str], None] = lambda text: None) -> Split:
    """Return the split with its images in a memory-mapped array, decoding them if no one has before.

    Left as they are: splits that are arrays already, and those whose images differ in shape, exceed 96 pixels a side
    or 4 GiB together. Pixels are the same either way.

    Args:
        split: any.
        folder: where arrays are kept; deleting it is always safe.
        workers: threads that decode; 0 = none.
        say: receives a line before a long decoding.

    Raises:
        DataError: an image cannot be read.
    """
    items = split.items
    if not isinstance(items, FileItems):
        return split
    shape = items[0].shape
    size = len(items) * int(np.prod(shape))
    if max(shape[:2]) > MAX_SIDE or size > MAX_BYTES:
        return split
    path = folder / f"{_state(split, items)}.npy"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                say(f"decode {split.role}/{split.name} once: {len(items)} images, {size / 1e6:.0f} MB")
                if not _write(items, shape, path, workers):
                    return split
    pixels = np.load(path, mmap_mode="r")
    return replace(split, items=ArrayItems(pixels, np.arange(len(items), dtype=np.int64)))


def _state(split: Split, items: FileItems) -> str:
    """What the pixels depend on: which files, and that none was written to since."""
    stats = [os.stat(path) for path in items.files]
    return digest({"split": split.digest, "files": [(s.st_size, s.st_mtime_ns) for s in stats]}, 24)


def _write(items: Items, shape: tuple[int, ...], path: Path, workers: int) -> bool:
    """Decode all images into a file that gets its name when it is whole; False if their shapes differ."""
    # One process at a time is here, and begins anew on what a killed one left.
    temporary = path.with_suffix(".packing")
    try:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=(len(items), *shape))
        start = 0
        for part in _decoded(items, workers):
            if any(image.shape != shape for image in part):
                return False
            array[start : start + len(part)] = np.stack(part)
            start += len(part)
        array.flush()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _decoded(items: Items, workers: int) -> Iterator[Sequence[Image]]:
    spans = [range(start, min(start + _PART, len(items))) for start in range(0, len(items), _PART)]
    if workers == 0:
        for span in spans:
            yield [items[index] for index in span]
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="packing") as pool:
        for span in spans:
            # Pillow gives Python's lock away while it decodes.
            images: list[NDArray[np.uint8]] = list(pool.map(items.__getitem__, span))
            yield images
