"""How fast images reach the network: from files, from files packed the first time, and from the packed array.

    python scripts/bench_loading.py --images 4000 --workers 0
    python scripts/bench_loading.py --images 512 --network     # and how much of an extraction is the network

All ways take turns in one process, so that their ratios hold on a busy machine. The images are windows of
scikit-learn's two photographs: 64×64 JPEG as in Tiny ImageNet, 32×32 PNG as in OpenOOD's copy of CIFAR-10, and the
latter as the array that CIFAR's pickles give. `--network` runs the ResNet-18 of the CIFAR benchmarks, untrained, on
the CPU, batch by batch after loading, and prints which share of the time each takes.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pillow
from sklearn.datasets import load_sample_images

from openbench.backbones.base import Backbone
from openbench.backbones.cifar import resnet
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Field, Request, Role
from openbench.data.decoded_cache import packed
from openbench.data.loading import batches
from openbench.data.sources.items import ArrayItems, FileItems

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


def as_array(split: Split) -> Split:
    """The same images as rows of one array, as CIFAR's pickles give them."""
    pixels = np.stack([split.items[index] for index in range(len(split))])
    return replace(split, items=ArrayItems(pixels, np.arange(len(split))))


def shares(split: Split, backbone: Backbone, rounds: int) -> tuple[float, float]:
    """Median seconds of loading and of the network over a split; the first batch warms both up."""
    request = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}))
    backbone.outputs(next(iter(batches(split, PREPROCESS, BATCH))), request)
    loading, computing = [], []
    for _ in range(rounds):
        taken, last = [0.0, 0.0], time.perf_counter()
        for images in batches(split, PREPROCESS, BATCH):
            loaded = time.perf_counter()
            backbone.outputs(images, request)
            taken[0] += loaded - last
            last = time.perf_counter()
            taken[1] += last - loaded
        loading.append(taken[0])
        computing.append(taken[1])
    return statistics.median(loading), statistics.median(computing)


def print_shares(count: int, rounds: int) -> None:
    """The split of a ResNet-18 extraction into loading and network, for arrays, JPEG files and packed files."""
    backbone = resnet("resnet18_cifar", "resnet18", num_classes=10, preprocess=PREPROCESS).initialise(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways: dict[str, Split] = {}
        for label, side, suffix in (("CIFAR array", 32, ".png"), ("64×64 .jpg files", 64, ".jpg")):
            (folder / suffix).mkdir()
            written = write_images(folder / suffix, count, side, suffix)
            ways[label] = as_array(written) if side == 32 else written
        ways["64×64 .jpg, packed"] = packed(ways["64×64 .jpg files"], folder / "cache")
        print(f"{count} images through ResNet-18 on the CPU, {torch.get_num_threads()} thread(s)")
        for label, split in ways.items():
            loading, computing = shares(split, backbone, rounds)
            share = computing / (loading + computing)
            print(f"  {label:<20}loading {loading:7.2f} s   network {computing:7.2f} s   network's share {share:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", action="store_true", help="print the network's share of an extraction instead")
    arguments = parser.parse_args()
    if arguments.network:
        print_shares(arguments.images, arguments.rounds)
        return
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
