"""What a detector costs beside the bare network: single images and batches, by method; and KNN's search alone.

    python scripts/bench_detector.py [--rounds 30] [--model resnet20_cifar10] [--methods msp,energy,react,knn]

Both ways take turns in one process, so that their ratio holds on a busy machine, and processor time is measured. The
bare way decodes nothing either: it normalises the same pixels and runs the network in eval mode under torch.no_grad(),
as a user would. The other way is `detector.predict`, whose score, p-values and decision are ready when it returns;
`all` reads class, name and prediction set too, which are made when they are asked for. Methods are fitted on noise:
what they cost does not depend on it.
"""

import argparse
import os
import statistics
import time

import numpy as np
import torch

import openbench as ob
from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.detect.features import network_input
from openbench.detect.from_benchmark import BANKS, with_bank
from openbench.methods.knn import KNN

BATCHES = (1, 64)
BANK, WIDTH = 50_000, 512


def turns(ways, rounds):
    """{name: median processor seconds} of functions that take turns."""
    spent = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            spent[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in spent.items()}


def everything(found):
    """Read what is made when it is asked for."""
    return found.label_name, found.prediction_set


def of_method(model, name, rounds):
    """Print the cost of one method on one network."""
    rng = np.random.default_rng(0)
    network = ob.Detector(model, "msp").fit().learnt.network.backbone
    side = network.preprocess.crop
    pixels = rng.integers(0, 256, (700, side, side, 3), dtype=np.uint8) if side < 64 else None
    pixels = rng.integers(0, 256, (128, side, side, 3), dtype=np.uint8) if pixels is None else pixels
    labels = np.arange(len(pixels)) % network.num_classes
    detector = ob.Detector(model, name).fit((pixels[: len(pixels) // 2], labels[: len(pixels) // 2]))
    detector.calibrate((pixels[len(pixels) // 2 :], labels[len(pixels) // 2 :]), alpha=0.05)
    bare = network.network.eval()

    def forward(images):
        with torch.no_grad():
            bare(network_input(images, network.preprocess))

    for size in BATCHES:
        images = list(pixels[:size])
        ways = {
            "bare": lambda rows=images: forward(rows),
            "detector": lambda rows=images: detector.predict(rows),
            "all": lambda rows=images: everything(detector.predict(rows)),
        }
        turns(ways, 3)
        cost = turns(ways, rounds if size == 1 else max(5, rounds // 5))
        more = {way: 100 * (cost[way] / cost["bare"] - 1) for way in ("detector", "all")}
        per_image = {way: 1e3 * seconds / size for way, seconds in cost.items()}
        print(
            f"{model} {name:<8} batch {size:>3}: bare {per_image['bare']:7.3f} ms/image, detector "
            f"{per_image['detector']:7.3f} ms/image, {more['detector']:+.1f} %; all {more['all']:+.1f} %",
            flush=True,
        )


def of_search(rounds):
    """Print the cost of KNN's search among 50,000 × 512 beside the product with all of them.

    Features of networks vary in few directions, which the search of single images uses: those of classes do here. Noise
    varies in all, and the product with everything is then taken.
    """
    generator = torch.Generator().manual_seed(0)
    lift, centres = torch.randn(64, WIDTH, generator=generator) / 8, 3 * torch.randn(10, 64, generator=generator)

    def of_classes(count):
        inside = centres[torch.randint(10, (count,), generator=generator)]
        return torch.relu((inside + torch.randn(count, 64, generator=generator) * torch.linspace(1, 0.1, 64)) @ lift)

    for kind, made in (("classes", of_classes), ("noise", lambda n: torch.randn(n, WIDTH, generator=generator))):
        of_bank(kind, made, rounds)


def of_bank(kind, made, rounds):
    """Print the cost of KNN's search among vectors of one kind, with each bank."""
    bank = made(BANK)
    train = FeatureSet({Field.FEATURES: bank})
    methods = {name: with_bank(KNN(k=50), name, "knn").fit(train, None) for name in BANKS}
    for size in BATCHES:
        queries = FeatureSet({Field.FEATURES: made(size)})
        ways = {name: lambda q=queries, m=method: m.score(q) for name, method in methods.items()}
        ways["the product alone"] = lambda q=queries: q.features @ bank.T
        turns(ways, 2)
        cost = turns(ways, rounds)
        each = ", ".join(f"{name} {1e3 * seconds / size:.3f}" for name, seconds in cost.items())
        print(f"KNN among {BANK:,} × {WIDTH} of {kind}, batch {size:>3}, ms per image: {each}", flush=True)


def main():
    """Print a line per method and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", default="resnet20_cifar10")
    parser.add_argument("--methods", default="msp,energy,react,knn")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for name in filter(None, arguments.methods.split(",")):
        of_method(arguments.model, name, arguments.rounds)
    of_search(max(5, arguments.rounds // 3))


if __name__ == "__main__":
    main()
