"""What `ob.evaluate` costs beside the forward passes that it makes: a ResNet-18 on the digits benchmark.

    python scripts/bench_evaluate.py --rounds 5 --side 32

Both ways take turns in one process, so that their ratio holds on a busy machine, and processor time is measured. The
bare way runs the network over the same images, which lie in memory as ready batches, in the same layout and batch
size. The other way is one call with the method MSP and an empty cache: it opens the benchmark, decodes and normalises
the images, copies and hashes the network, writes the features, scores, measures and writes the record.
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
WORDS = ["tune=none", "metrics.families=[ranking]"]


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


def evaluated(network: torch.nn.Module, preprocess: ob.Preprocess, folder: Path) -> float:
    start = time.process_time()
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
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", type=int, default=32, help="of the network's input, in pixels")
    arguments = parser.parse_args()
    preprocess = ob.Preprocess(resize=arguments.side, crop=arguments.side)
    network = CifarResNet(SPECS["resnet18"], 6).eval()
    benchmark = build_benchmark(composed("run", ["+benchmark=digits", *WORDS]).config["benchmark"], "")
    images = ready(benchmark, preprocess)
    laid_out = CifarResNet(SPECS["resnet18"], 6).eval().to(memory_format=torch.channels_last)
    laid_out.load_state_dict(network.state_dict())
    bare(laid_out, images[:2])
    taken: list[tuple[float, float]] = []
    for _ in range(arguments.rounds):
        folder = Path(tempfile.mkdtemp())
        taken.append((bare(laid_out, images), evaluated(network, preprocess, folder)))
        shutil.rmtree(folder)
    count = sum(len(batch) for batch in images)
    ratio = statistics.median(whole / alone for alone, whole in taken)
    print(f"{count} images of {arguments.side}×{arguments.side}, ResNet-18, {torch.get_num_threads()} thread(s)")
    print(f"processor: {platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}")
    for name, index in (("bare forward passes", 0), ("ob.evaluate", 1)):
        print(f"  {name:<22}{statistics.median(pair[index] for pair in taken):8.2f} s")
    print(f"  median of the ratios  {ratio:8.3f}, so evaluate adds {ratio - 1:.1%}")


if __name__ == "__main__":
    main()
