"""Small images decoded once: one memory-mapped array of bytes per split, kept beside the features."""

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from openbench.checkout import uncommitted
from openbench.core.benchmark import Image, Items, Split
from openbench.data.sources.items import ArrayItems, FileItems
from openbench.digest import digest
from openbench.say import Say, silent
from openbench.storage.array_file import writing_array
from openbench.storage.checksum import DAMAGED, content_digest
from openbench.storage.files import write_whole

# Decoding a 64×64 JPEG takes longer than reading its 12 kB; beyond this side the arrays outgrow the files too far.
MAX_SIDE = 96
MAX_BYTES = 4 << 30
_PART = 512


def packed(split: Split, folder: Path, workers: int = 0, say: Say = silent) -> Split:
    """Return the split with its images in a memory-mapped array, decoding them if no one has before.

    Splits that are arrays already stay as they are, and so do those whose images differ in shape, exceed 96 pixels a
    side or 4 GiB together. Pixels are the same either way.

    Args:
        split: any.
        folder: where arrays are kept; deleting it is always safe.
        workers: threads that decode; 0 = none.
        say: receives a line before images are decoded, and one where those that were kept are damaged.

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
    if _fault(path) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            fault = _fault(path)  # another job may have decoded them while this one waited
            if fault is not None:
                if path.exists():
                    say(f"decoded images: {fault} — decoded again")
                say(f"decode {split.role}/{split.name} once: {len(items)} images, {size / 1e6:.0f} MB")
                if not _write(items, shape, path, workers):
                    return split
    pixels = np.load(path, mmap_mode="r", allow_pickle=False)
    return replace(split, items=ArrayItems(pixels, np.arange(len(items), dtype=np.int64)))


def _state(split: Split, items: FileItems) -> str:
    """What the pixels depend on: which files, their sizes, when they were last written, and code without a commit."""
    stats = [os.stat(path) for path in items.files]
    depends = {"split": split.digest, "files": [(s.st_size, s.st_mtime_ns) for s in stats]}
    changed = uncommitted(__name__, parts=(split.source,))
    return digest({**depends, "uncommitted": changed} if changed else depends, 24)


def _fault(path: Path) -> str | None:
    """Return what is wrong with an array of pixels, None if every byte is as it was written."""
    try:
        stated = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if content_digest(path) == stated["digest"]:
            return None
    except FileNotFoundError as error:
        return f"'{error.filename}' is missing"
    except DAMAGED as error:
        return f"'{path}' cannot be read ({error})"
    return f"'{path}' does not hold what was written"


def _write(items: Items, shape: tuple[int, ...], path: Path, workers: int) -> bool:
    """Decode all images into a file that gets its name when it is whole; False if their shapes differ."""
    try:
        with writing_array(path, (len(items), *shape), np.uint8) as array:
            for part in _decoded(items, workers):
                if any(image.shape != shape for image in part):
                    raise _ShapesDifferError
                array.append(np.stack(part))
            # The digest is written first: a reader that finds only one of the two files takes the array for damaged.
            write_whole(path.with_suffix(".json"), json.dumps({"digest": array.digest}).encode())
    except _ShapesDifferError:
        return False
    return True


class _ShapesDifferError(Exception):
    """The images of a set have several shapes, so they do not fit into one array."""


def _decoded(items: Items, workers: int) -> Iterator[Sequence[Image]]:
    spans = [range(start, min(start + _PART, len(items))) for start in range(0, len(items), _PART)]
    if workers == 0:
        for span in spans:
            yield [items[index] for index in span]
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="packing") as pool:
        for span in spans:
            # Pillow releases Python's lock while it decodes.
            images: list[NDArray[np.uint8]] = list(pool.map(items.__getitem__, span))
            yield images
