"""What `ob.evaluate` costs beside the forward passes that it makes: a ResNet-18 on the digits benchmark.

    python scripts/bench_evaluate.py --rounds 5 --side 32

Processor time is measured, in two ways, round by round. Within: of one call with the method MSP and an empty cache,
the time in the network's forward passes over whole batches against all the rest: opening the benchmark, decoding and
normalising the images, copying, hashing and trying the network, writing the features, scoring, measuring and writing
the record. Both are of the same seconds, so that this figure holds on a busy machine. Against: the same call against
the bare network over the same images, which lie in memory as ready batches, in the same layout and batch size; who
goes first changes from round to round. Of both it prints the median of the rounds, the smallest and the largest.
"""

import argparse
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

import openbench as ob
import openbench.api.evaluate  # not part of the time
from openbench.backbones.cifar import SPECS, CifarResNet
from openbench.compose.composed import composed
from openbench.core.benchmark import Benchmark
from openbench.data.build import build_benchmark
from openbench.data.loading import batches

BATCH = 256
TRIED = 8  # images that a network is tried on before it is run; such a pass counts as overhead
inside = [0.0]  # seconds in forward passes since it was set to 0
WORDS = ["tune=none", "metrics.families=[ranking]"]


class Timed(CifarResNet):
    """A CifarResNet that adds up the processor time of its passes over batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to logits."""
        start = time.process_time()
        logits = super().forward(x)
        if len(x) > TRIED:
            inside[0] += time.process_time() - start
        return logits


def ready(benchmark: Benchmark, preprocess: ob.Preprocess) -> list[torch.Tensor]:
    """All images that MSP reads, as batches in the layout that the network takes fastest."""
    splits = [split for split in benchmark.splits() if split.role not in ("id_train", "ood_train")]
    rows = [rows for split in splits for rows in batches(split, preprocess, BATCH)]
    return [images.contiguous(memory_format=torch.channels_last) for images in rows]


def bare(network: torch.nn.Module, images: list[torch.Tensor]) -> float:
    start = time.process_time()
    with torch.no_grad():
        for batch in images:
            network(batch)
    return time.process_time() - start


def evaluated(network: torch.nn.Module, preprocess: ob.Preprocess) -> tuple[float, float]:
    """The seconds of a call, and those of them in forward passes."""
    folder = Path(tempfile.mkdtemp())
    start, inside[0] = time.process_time(), 0.0
    ob.evaluate(
        network,
        benchmark="digits",
        preprocess=preprocess,
        overrides=WORDS[1:],
        tune="none",
        cache=folder / "cache",
        results=folder / "results",
        batch_size=BATCH,
        progress=False,
    )
    taken = time.process_time() - start
    shutil.rmtree(folder)
    return taken, inside[0]


def spread(ratios: list[float]) -> str:
    median, low, high = (f"{x - 1:+.1%}" for x in (statistics.median(ratios), min(ratios), max(ratios)))
    return f"{median} ({low} to {high} in {len(ratios)} rounds)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", type=int, default=32, help="of the network's input, in pixels")
    arguments = parser.parse_args()
    preprocess = ob.Preprocess(resize=arguments.side, crop=arguments.side)
    network = Timed(SPECS["resnet18"], 6).eval()
    benchmark = build_benchmark(composed("run", ["+benchmark=digits", *WORDS]).config["benchmark"], "")
    images = ready(benchmark, preprocess)
    laid_out = Timed(SPECS["resnet18"], 6).eval().to(memory_format=torch.channels_last)
    laid_out.load_state_dict(network.state_dict())
    bare(laid_out, images[:2])
    alone, calls = [], []
    for at in range(arguments.rounds):
        if at % 2:
            calls.append(evaluated(network, preprocess))
        alone.append(bare(laid_out, images))
        if not at % 2:
            calls.append(evaluated(network, preprocess))
    count = sum(len(batch) for batch in images)
    whole, passes = ([call[at] for call in calls] for at in (0, 1))
    print(f"{count} images of {arguments.side}×{arguments.side}, ResNet-18, {torch.get_num_threads()} thread(s)")
    print(f"processor: {platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}")
    for name, seconds in (("bare forward passes", alone), ("ob.evaluate", whole), ("  its forward passes", passes)):
        print(f"  {name:<22}{statistics.median(seconds):8.2f} s")
    print(
        f"  within a call, all that is no forward pass: {spread([w / p for w, p in zip(whole, passes, strict=True)])}"
    )
    print(f"  a call against the bare passes:             {spread([w / b for w, b in zip(whole, alone, strict=True)])}")


if __name__ == "__main__":
    main()
