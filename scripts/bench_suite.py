"""Print what a suite of methods costs beside one forward pass of its images, and by OpenOOD's procedure.

    OMP_NUM_THREADS=1 python scripts/bench_suite.py +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow
    OMP_NUM_THREADS=1 python scripts/bench_suite.py +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow 'method=glob(*)'

What is typed is the sweep, as after `run -m`; without `method=` it is that of the methods which OpenOOD too computes
from features and logits. Seconds are the processor's, which other programs hardly disturb. A pass is timed on the first
ID test images (`--images`), decoding them among it, and taken to cost as much for every image of the benchmark. The
sweep is timed as a whole, with its features cached: they are extracted before, where they are not.

OpenOOD's evaluator caches nothing. For each method it passes all test sets, and the ID test set again for the accuracy;
the ID training or validation set where the method is fitted on it; and ID and OOD validation for each combination of
the hyper-parameters that its configuration searches. So many passes are counted, on the sets at hand, and nothing else
of what it does; two for a method that takes an input gradient would be counted as one.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
import types
from collections.abc import Mapping
from pathlib import Path

from openbench.__main__ import main as openbench
from openbench.backbones.base import Backbone
from openbench.compose.composed import composed
from openbench.core.benchmark import Benchmark
from openbench.core.request import Field, Role
from openbench.core.runtime import Runtime
from openbench.engine import provenance as clock
from openbench.engine.prepare import build_method, load_benchmark, ready_backbone
from openbench.features.columns import Column
from openbench.features.extract import extract, select

# Of OpenOOD 1.5's configurations: method → the set that it is fitted on, and how many combinations it searches.
OPENOOD: Mapping[str, tuple[Role | None, int]] = {
    "msp": (None, 0),
    "mls": (None, 0),
    "energy": (None, 1),
    "temp_scaling": (Role.ID_VAL, 0),
    "gen": (None, 42),
    "klm": (Role.ID_VAL, 0),
    "openmax": (Role.ID_TRAIN, 0),
    "react": (Role.ID_VAL, 4),
    "vra": (Role.ID_VAL, 16),
    "ash": (None, 7),
    "scale": (None, 7),
    "dice": (Role.ID_TRAIN, 0),
    "vim": (Role.ID_TRAIN, 2),
    "residual": (Role.ID_VAL, 0),
    "knn": (Role.ID_TRAIN, 5),
    "mds": (Role.ID_TRAIN, 0),
    "rmds": (Role.ID_TRAIN, 0),
    "she": (Role.ID_TRAIN, 0),
    "nnguide": (None, 0),  # a hundredth of ID train
    "relation": (Role.ID_TRAIN, 5),
    "fdbd": (Role.ID_TRAIN, 2),
    "nci": (Role.ID_TRAIN, 4),
    "gradnorm": (None, 0),
}
METHOD = ("tune", "fit", "score", "features")  # stages of a method
TESTED = (Role.ID_TEST, Role.CSID, Role.NEAR, Role.FAR)


def images_of(benchmark: Benchmark) -> dict[Role, int]:
    """Return the number of images of each role."""
    found: dict[Role, int] = {}
    for split in benchmark.splits():
        found[split.role] = found.get(split.role, 0) + len(split)
    return found


def openood_images(name: str, images: Mapping[Role, int]) -> int:
    """Return how many images OpenOOD's evaluator passes for one of its methods.

    Args:
        name: of the method.
        images: of the benchmark, by role.
    """
    fitted_on, combinations = OPENOOD[name]
    tested = sum(images.get(role, 0) for role in TESTED) + images[Role.ID_TEST] + images.get(Role.CSID, 0)
    fitted = 0 if fitted_on is None else images[fitted_on]
    return tested + fitted + combinations * (images[Role.ID_VAL] + images.get(Role.OOD_VAL, 0))


def seconds_per_image(backbone: Backbone, benchmark: Benchmark, images: int) -> float:
    """Return the processor seconds of one image, decoded and passed; a batch goes before the clock starts."""
    column, split = (Column(Field.FEATURES),), benchmark.id_test
    for _ in extract(backbone, select(split, range(256)), column, 256):
        pass
    part = select(split, range(min(images, len(split))))
    start = time.process_time()
    for _ in extract(backbone, part, column, 256):
        pass
    return (time.process_time() - start) / len(part)


def swept(arguments: list[str], folder: Path) -> tuple[float, list[dict[str, float]]]:
    """Carry out a sweep; return its processor seconds and those of the stages of each record."""
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        openbench(["run", "-m", *arguments, f"runtime.results={folder}", "runtime.progress=false"])
    taken = time.process_time() - start
    files = sorted((folder / "records").rglob("*.json"))
    return taken, [json.loads(file.read_text())["provenance"]["seconds"] for file in files]


def timed(shared: list[str], methods: list[str], one_pass: float) -> str:
    """Extract what the methods read, time their sweep, and return what it took in words."""
    with contextlib.redirect_stdout(io.StringIO()):
        failed = openbench(["extract", *shared, "method=knn", "runtime.progress=false"])
    if failed:
        sys.exit(failed)
    clock.time = types.SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        taken, stages = swept([*shared, *methods], Path(place))
    own = sum(seconds for of in stages for name, seconds in of.items() if name in METHOD)
    metrics = sum(of.get("metrics", 0.0) for of in stages)
    return (
        f"{len(stages)} methods from cached features: {taken:.0f} s ({own:.0f} of methods, {metrics:.0f} of metrics), "
        f"{taken / one_pass:.2f} passes; with the pass {1 + taken / one_pass:.2f}"
    )


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000, help="on which a pass is timed")
    return parser.parse_known_args()


def main() -> None:
    options, typed = arguments()
    methods = [word for word in typed if word.startswith("method=")] or [f"method={','.join(OPENOOD)}"]
    shared = [word for word in typed if not word.startswith("method=")]
    one = composed("run", [*shared, "method=knn"])
    chosen = build_method(one.config["method"])
    benchmark = load_benchmark(one.config, chosen)
    backbone, _ = ready_backbone(one.config, benchmark, Runtime.from_config(one.runtime))
    images = images_of(benchmark)
    whole = sum(images.values())
    one_pass = whole * seconds_per_image(backbone, benchmark, options.images)
    print(timed(shared, methods, one_pass))
    theirs = sum(openood_images(name, images) for name in OPENOOD)
    print(
        f"{whole:,} images; a pass takes {one_pass:.0f} processor seconds\n"
        f"OpenOOD, {len(OPENOOD)} methods: {theirs:,} images, {theirs / whole:.1f} passes, "
        f"{theirs / whole * one_pass:.0f} s of the network alone"
    )


if __name__ == "__main__":
    main()
