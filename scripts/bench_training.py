"""Where the time of a training step goes: cutting and augmenting the batch, forward and backward, optimiser.

    python scripts/bench_training.py --model resnet18 --steps 6
    python scripts/bench_training.py --model resnet18 --steps 100 --device cuda --precision bf16

The images are noise of CIFAR's size; the parts are timed in turn in one process, so their ratios hold on a busy
machine.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from openbench.backbones.cifar import SPECS, resnet
from openbench.backbones.device import arithmetic, resolve_device
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.sources.items import ArrayItems
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop
from openbench.training.images import hold
from openbench.training.job import TrainingJob
from openbench.training.loop.session import Session
from openbench.training.methods.cross_entropy import CrossEntropy
from openbench.training.recipe import Recipe

CIFAR10 = Preprocess(32, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def noise(role: Role, n: int) -> Split:
    pixels = np.random.default_rng(0).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(n) % 10
    classes = tuple("abcdefghij")
    return Split("noise", role, ArrayItems(pixels, np.arange(n)), labels, [str(i) for i in range(n)], classes, "-", n)


def timed(action: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    device = resolve_device(arguments.device)
    augment = (RandomCrop(4), HorizontalFlip())
    recipe = Recipe(batch_size=arguments.batch, augment=augment, precision=arguments.precision)
    backbone = resnet("bench", arguments.model, num_classes=10, preprocess=CIFAR10)
    method = CrossEntropy(recipe)
    job = TrainingJob(backbone, "noise", noise(Role.ID_TRAIN, 10_000), noise(Role.ID_VAL, 100), None, method, 0)
    session = Session.begin(job, folder, device)
    data = hold(job.id_train, CIFAR10, device)
    session.prepared.train()
    times: dict[str, list[float]] = {"batch": [], "forward + backward": [], "optimiser": []}
    dtype = AUTOCAST.get(arguments.precision)

    def batch() -> None:
        rows = torch.randint(len(data), (arguments.batch,), generator=session.generator)
        state["images"] = data.images(rows, augment, session.generator)
        state["labels"] = data.labels[rows.to(device)]

    def forward_backward() -> None:
        session.optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(session.prepared(state["images"]), state["labels"])
        session.scaler.scale(loss).backward()

    def optimise() -> None:
        session.scaler.step(session.optimiser)
        session.scaler.update()

    state: dict[str, torch.Tensor] = {}
    with arithmetic("tf32" if arguments.precision == "tf32" else "fp32", device):
        for step in range(arguments.steps + 2):
            for name, part in (("batch", batch), ("forward + backward", forward_backward), ("optimiser", optimise)):
                seconds = timed(part, device)
                if step >= 2:  # the first steps choose kernels and allocate
                    times[name].append(seconds)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", choices=sorted(SPECS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16", "fp16"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = measure(arguments, Path(folder))
    medians = {name: statistics.median(values) for name, values in times.items()}
    total = sum(medians.values())
    for name, seconds in medians.items():
        print(f"{name:<20}{1000 * seconds:>10.2f} ms{100 * seconds / total:>8.2f} %")
    print(f"{'step':<20}{1000 * total:>10.2f} ms, {arguments.batch / total:,.0f} images/s")


if __name__ == "__main__":
    main()
