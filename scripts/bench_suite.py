"""Print what a suite of methods costs beside one forward pass of its images, and by OpenOOD's procedure.

    OMP_NUM_THREADS=1 python scripts/bench_suite.py +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow
    OMP_NUM_THREADS=1 python scripts/bench_suite.py +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow 'method=glob(*)'
    OMP_NUM_THREADS=1 python scripts/bench_suite.py +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow --records RESULTS --clock 5400 --processor 4100

What is typed is the sweep, as after `run -m`; without `method=` it is that of the methods which OpenOOD too computes
from features and logits. Seconds are the processor's, which other programs hardly disturb. A pass is timed on the first
ID test images (`--images`), decoding them among it, and taken to cost as much for every image of the benchmark. The
sweep is timed as a whole, with its features cached: they are extracted before, where they are not.

OpenOOD's evaluator caches nothing. For each method it passes all test sets, and the ID test set again for the accuracy;
the ID training or validation set where the method is fitted on it; and ID and OOD validation for each combination of
the hyper-parameters that its configuration searches. So many passes are counted, on the sets at hand, and nothing else
of what it does; two for a method that takes an input gradient would be counted as one.

`--records` times no sweep: it reads the records that one has left in a results folder of its own, begun with an empty
cache. Their seconds are the clock's; they are scaled by what `time` said of that command, `--processor` (user and sys)
to `--clock` (real).
"""

import argparse
import json
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_sweep import METHOD, carried_out, swept  # beside this script

from openbench.backbones.base import Backbone
from openbench.compose.config import composed
from openbench.core.benchmark import Benchmark
from openbench.core.method import LiveMethod, Method, leaves
from openbench.core.request import Field, Role
from openbench.core.runtime import Runtime
from openbench.engine import provenance as clock
from openbench.engine.prepare import build_method, load_benchmark, ready_backbone
from openbench.features.columns import Column
from openbench.features.extract import BatchHalving, extract, select

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
TESTED = (Role.ID_TEST, Role.CSID, Role.NEAR, Role.FAR)
LEARNERS = ("dagmm", "deep_svdd", "opengan")  # which take gradient steps
CACHED, MAPS = "methods that read features and logits", "methods that read maps of inner layers"
MORE, LEARNT = "methods with passes of their own", "methods that take gradient steps"
OWN = ("tune", "fit", "score")  # stages of a method beside the network, whose seconds are those of `features`


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
    for _ in extract(backbone, select(split, range(256)), column, BatchHalving()):
        pass
    part = select(split, range(min(images, len(split))))
    start = time.process_time()
    for _ in extract(backbone, part, column, BatchHalving()):
        pass
    return (time.process_time() - start) / len(part)


def kind_of(name: str, method: Method) -> str:
    """Return which kind of method it is, by what it reads and what it is made of.

    Args:
        name: of the method.
        method: built.
    """
    requests = [leaf.request for leaf in leaves(method)]
    if name in LEARNERS:
        return LEARNT
    if any(isinstance(leaf, LiveMethod) for leaf in leaves(method)) or any(
        asked.perturb or asked.second_pass or asked.corruption or asked.mixing for asked in requests
    ):
        return MORE
    return MAPS if any(asked.layers for asked in requests) else CACHED


def table_of(
    records: Sequence[Mapping[str, Any]], processor: float, clock: float, one_pass: float, images: int
) -> list[str]:
    """Return the lines of a Markdown table: where the seconds of a sweep went, and how many passes of all images.

    Args:
        records: of the sweep, plain.
        processor: seconds that all of it took, user and system.
        clock: seconds that it took.
        one_pass: processor seconds of a pass over all images.
        images: of the benchmark.
    """

    def row(title: str, jobs: int | str, seconds: float) -> str:
        seconds *= processor / clock
        return f"| {title} | {jobs} | {seconds:,.0f} | {seconds / one_pass:.2f} |"

    kinds: dict[str, list[float]] = {kind: [] for kind in (CACHED, MAPS, MORE, LEARNT)}
    longest: list[tuple[float, str]] = []
    for record in records:
        stages, name = record["provenance"]["seconds"], record["method"]["name"]
        own = sum(stages.get(stage, 0.0) for stage in OWN)
        kinds[kind_of(name, build_method(record["config"]["method"]).method)].append(own)
        longest.append((own, name))
    network, metrics = (
        sum(record["provenance"]["seconds"].get(stage, 0.0) for record in records) for stage in ("features", "metrics")
    )
    passed = sum(record["provenance"]["passes"] for record in records)
    beside = clock - network - metrics - sum(map(sum, kinds.values()))
    lines = ["| | methods | seconds | in passes |", "| --- | ---: | ---: | ---: |"]
    lines += [row("a pass over all images", "", one_pass * clock / processor)]
    lines += [row(f"the network: {passed:,} images, {passed / images:.1f} × all", "", network)]
    lines += [row(kind, len(own), sum(own)) for kind, own in kinds.items()]
    lines += [row("metrics", "", metrics), row("all else", "", beside)]
    lines += [row("the command", len(records), clock)]
    most = ", ".join(f"`{name}` {own * processor / clock:,.0f}" for own, name in sorted(longest)[:-9:-1])
    return [*lines, "", f"Longest, beside the network: {most} s."]


def timed(shared: list[str], methods: list[str], one_pass: float) -> str:
    """Extract what the methods read, time their sweep, and return what it took in words."""
    carried_out(["extract", *shared, "method=knn", "runtime.progress=false"])
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
    parser.add_argument("--records", type=Path, help="results folder of a sweep that has ended")
    parser.add_argument("--clock", type=float, default=1.0, help="seconds that it took, `real` of the shell's `time`")
    parser.add_argument("--processor", type=float, default=1.0, help="its processor seconds, `user` and `sys` together")
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
    if options.records is None:
        print(timed(shared, methods, one_pass))
    else:
        records = [json.loads(file.read_text()) for file in sorted(options.records.glob("records/*/*/*/*.json"))]
        print(*table_of(records, options.processor, options.clock, one_pass, whole), sep="\n")
    theirs = sum(openood_images(name, images) for name in OPENOOD)
    print(
        f"{whole:,} images; a pass takes {one_pass:.0f} processor seconds\n"
        f"OpenOOD, {len(OPENOOD)} methods: {theirs:,} images, {theirs / whole:.1f} passes, "
        f"{theirs / whole * one_pass:.0f} s of the network alone"
    )


if __name__ == "__main__":
    main()
