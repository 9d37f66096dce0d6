"""How fast images reach the network: from files, from files packed the first time, and from the packed array.

    python scripts/bench_loading.py --images 4000 --workers 0

All three ways take turns in one process, so that their ratios hold on a busy machine. The images are windows of
scikit-learn's two photographs: 64×64 JPEG as in Tiny ImageNet, 32×32 PNG as in OpenOOD's copy of CIFAR-10.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image as Pillow
from sklearn.datasets import load_sample_images

from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.items import FileItems
from openbench.data.loading import batches
from openbench.data.packed import packed

BATCH = 256
PREPROCESS = Preprocess(resize=32, crop=32)


def write_images(folder: Path, count: int, side: int, suffix: str) -> Split:
    photos = load_sample_images().images
    rng = np.random.default_rng(0)
    files = []
    for index in range(count):
        photo = photos[index % len(photos)]
        top, left = (int(rng.integers(length - side)) for length in photo.shape[:2])
        files.append(folder / f"{index:06d}{suffix}")
        Pillow.fromarray(photo[top : top + side, left : left + side]).save(files[-1])
    labels = np.full(count, -1)
    return Split("bench", Role.FAR, FileItems(files), labels, [f.name for f in files], (), f"{side}{suffix}", count)


def seconds(split: Split, workers: int) -> float:
    start = time.perf_counter()
    for _ in batches(split, PREPROCESS, BATCH, workers):
        pass
    return time.perf_counter() - start


def measure(split: Split, cache: Path, workers: int, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"files": [], "packed, first pass": [], "packed, later pass": []}
    for _ in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        taken["files"].append(seconds(split, workers))
        for name in ("packed, first pass", "packed, later pass"):
            start = time.perf_counter()
            ready = packed(split, cache, workers)
            taken[name].append(time.perf_counter() - start + seconds(ready, workers))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for side, suffix in ((64, ".jpg"), (32, ".png")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "images").mkdir()
            split = write_images(folder / "images", arguments.images, side, suffix)
            taken = measure(split, folder / "cache", arguments.workers, arguments.rounds)
        base = statistics.median(taken["files"])
        print(f"{arguments.images} images, {side}×{side} {suffix}, {arguments.workers} workers")
        for way, times in taken.items():
            median = statistics.median(times)
            print(f"  {way:<20}{arguments.images / median:>10,.0f} images/s   {base / median:>5.1f}× files")


if __name__ == "__main__":
    main()
