"""Print fit and score times and memory of post-hoc methods, as ratios to a floor measured in the same process.

    OMP_NUM_THREADS=2 python scripts/bench_methods.py                          # every method, 50,000 × 512, C = 10
    OMP_NUM_THREADS=2 python scripts/bench_methods.py --methods knn,mds,vim --train 10000 --test 5000
    OMP_NUM_THREADS=2 python scripts/bench_methods.py --indexes --test 5000
    OMP_NUM_THREADS=2 python scripts/bench_methods.py --streamed FOLDER --train 1281167 --dim 2048 --classes 1000

The floor of a step is the work that cannot be avoided: float32 matrix products of the same size (KNN: queries × bank;
MDS: features × d × d; …) and decompositions of covariances, a selection of the largest entries (ASH) or of a percentile
(ReAct), or one pass over the columns that the step needs, with the head's product where there is one. A pass reads each
value of a column and writes one of each row. `peer` is the fastest of pytorch-ood (p), oodeel (o) and PyOD (P) on the
same arrays, of those that are installed. Floors, methods and peers score in batches of 4,096. With OMP_NUM_THREADS=1
times are of the process, which other programs hardly disturb.

Fits that invert a covariance (MDS, RMDS, ViM, Residual) add up products in float64, at twice the price of float32 and
for little more than half of the matrix, where pytorch-ood takes float32. With float32 products the scores of MDS moved
by 6e-6, 3e-4 and 3e-2 of themselves where standard deviations spanned 1 to 1e-2, 1e-3 and 1e-4 (20,000 × 128, d = 128,
differences from class means rounded once, sums in float64).

`--streamed` maps the training columns from files (16 GB in the example), fits once and prints the wall clock of the
first calls too. Methods that read more than features and logits are skipped, saying so.
"""

import argparse
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from bench_peers import BATCH, VALIDATION, peers  # beside this script
from torch import Tensor

from openbench import paths
from openbench.config.build import build
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Composite, Method, StreamingMethod
from openbench.core.request import Field, Role
from openbench.errors import OpenbenchError, did_you_mean
from openbench.metrics.curve import PooledCurve
from openbench.storage.yaml_file import read_yaml

_LOGIT = 50.0  # about twice what the logit of the true class is
_DRAWN = 16384  # samples drawn at a time
_SHORT = 5.0  # seconds below which a score is timed several times though the training columns are mapped
_BLOCK = 65536  # rows that a pass is timed on; a longer column takes as many times as long
NODES = {f.stem: read_yaml(f) for f in sorted((paths.config_dir() / "method").glob("*.yaml"))}


@dataclass(frozen=True)
class Sizes:
    """How much data: training samples n, test samples m, dimensions d, classes c."""

    n: int
    m: int
    d: int
    c: int


@dataclass(frozen=True)
class Data:
    """Rectified features around class centres, with the logits of a linear head."""

    train: FeatureSet
    test: FeatureSet
    head: Head


def make_data(size: Sizes, folder: Path | None = None) -> Data:
    """Draw both splits; with a folder the training columns are files there, mapped, and drawn once only."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(size.c, size.d, generator=generator)
    head = Head(centres * (_LOGIT / size.d), torch.zeros(size.c))

    def fill(columns: dict[Field, Tensor]) -> FeatureSet:
        labels = columns[Field.LABELS]
        for start in range(0, len(labels), _DRAWN):
            part = slice(start, start + _DRAWN)
            labels[part].random_(size.c, generator=generator)
            noise = torch.randn(len(labels[part]), size.d, generator=generator)
            features = (centres[labels[part]] + noise).relu_()
            columns[Field.FEATURES][part], columns[Field.LOGITS][part] = features, head(features)
        return FeatureSet(columns)

    def empty(count: int, place: Path | None = None) -> dict[Field, Tensor]:
        found = {}
        for key, (width, dtype) in layout.items():
            shape, size = (count, *width), count * math.prod(width)
            if place is None:
                found[key] = torch.empty(shape, dtype=dtype)
            else:
                found[key] = torch.from_file(str(place / f"{key}.bin"), shared=True, size=size, dtype=dtype).view(shape)
        return found

    layout = {
        Field.FEATURES: ((size.d,), torch.float32),
        Field.LOGITS: ((size.c,), torch.float32),
        Field.LABELS: ((), torch.int64),
    }
    test = fill(empty(size.m))
    if folder is None:
        return Data(fill(empty(size.n)), test, head)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = folder / f"drawn-{size.n}-{size.d}-{size.c}"
    columns = empty(size.n, folder)
    train = FeatureSet(columns) if drawn.exists() else fill(columns)
    drawn.touch()
    return Data(train, test, head)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of `work` after one warm-up call."""
    work()
    now, times = clock(), []
    for _ in range(repeats):
        start = now()
        work()
        times.append(now() - start)
    return median(times)


def clock() -> Callable[[], float]:
    """Return the clock to time with: a single thread's own time is what an idle machine's wall clock would show."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def gemm(rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float32) -> float:
    """Seconds of one (rows, inner) × (inner, columns) product, timed on at most 8,192 × 65,536 of it and scaled."""
    part, wide = min(rows, 8192), min(columns, _BLOCK)
    a, b = torch.randn(part, inner, dtype=dtype), torch.randn(inner, wide, dtype=dtype)
    out = torch.empty(part, wide, dtype=dtype)
    return seconds(lambda: torch.mm(a, b, out=out), 3) * (rows / part) * (columns / wide)


def one_pass(x: FeatureSet, fields: Iterable[Field], of_logits: Callable[[Tensor], Tensor] = torch.exp) -> float:
    """Seconds of one pass over columns in batches: a sum of each row, of the exponentials of logits by default."""
    rows = min(len(x), _BLOCK)

    def read(field: Field) -> None:
        for part in torch.split(x.columns[field][:rows].view(rows, -1), BATCH):
            (of_logits(part) if field == Field.LOGITS else part).sum(dim=1)

    return sum(seconds(lambda f=f: read(f), 5) for f in fields) * len(x) / rows


def eigen(dim: int) -> float:
    """Seconds of the decomposition of one (dim, dim) covariance, which every pseudo-inverse needs."""
    a = torch.randn(2 * dim, dim)
    covariance = a.T @ a
    return seconds(lambda: torch.linalg.eigh(covariance), 3)


def fit_floor(name: str, data: Data, size: Sizes) -> float | None:
    """The least seconds that a fit can take; None where there is nothing to fit."""
    request = build(NODES[name], name).request
    if request.fit_on is None:
        return None
    train = data.train[:VALIDATION] if request.fit_on == Role.ID_VAL else data.train
    name = name.removesuffix("_pp")
    if name in ("mds", "rmds", "vim", "residual", "neco"):
        residual = gemm(size.n, size.d, size.d - 256 if size.d > 256 else size.d // 2) if name == "vim" else 0
        return gemm(size.n, size.d, size.d) + residual + (2 if name == "rmds" else 1) * eigen(size.d)
    if name in ("react", "vra"):
        values = train.features.numpy().reshape(-1)
        return seconds(lambda: np.partition(values, int(0.9 * values.size)), 3)
    return one_pass(train, request.fields)


def score_floor(name: str, data: Data, size: Sizes) -> float:
    """The least seconds that scoring can take."""
    request = build(NODES[name], name).request
    head, exponentials = gemm(size.m, size.d, size.c), one_pass(data.test, [Field.LOGITS])
    products = {
        "mls": lambda: one_pass(data.test, [Field.LOGITS], torch.Tensor.float),
        "gen": lambda: exponentials + one_pass(data.test, [Field.LOGITS], lambda z: z.abs().pow(0.1)),
        "lts": lambda: seconds(lambda: data.test.features.topk(size.d // 20, dim=1, sorted=False), 3),
        "neco": lambda: gemm(size.m, size.d, size.d),
        "knn": lambda: gemm(size.m, size.d, size.n),
        "knn_plain": lambda: gemm(size.m, size.d, size.n),
        "grood": lambda: gemm(size.m, size.d, size.n),
        "cfood": lambda: gemm(size.m, size.d, size.n // 10, torch.float64),
        "kpca": lambda: gemm(size.m, size.d, min(4 * size.d, 4096)),
        "weiper": lambda: gemm(size.m, size.d, 100 * size.c, torch.float64),
        "relation": lambda: gemm(size.m, size.d + size.c, size.n),
        "mds": lambda: gemm(size.m, size.d, size.d) + head,
        "nnguide": lambda: gemm(size.m, size.d, max(size.n // 100, 100)),
        "rmds": lambda: 2 * gemm(size.m, size.d, size.d) + head,
        "klm": lambda: exponentials + logarithms() + gemm(size.m, size.c, size.c, torch.float64),
        "vim": lambda: gemm(size.m, size.d, size.d - 256 if size.d > 256 else size.d // 2),
        "residual": lambda: gemm(size.m, size.d, size.d // 2),
        "ash": lambda: seconds(lambda: data.test.features.topk(size.d // 10, dim=1, sorted=False), 3),
        "scale": lambda: seconds(lambda: data.test.features.topk(size.d // 7, dim=1, sorted=False), 3),
        "openmax": lambda: exponentials + gemm(size.m, size.c, size.c, torch.float64),
    }

    def logarithms() -> float:
        return one_pass(data.test, [Field.LOGITS], lambda z: z.double().abs().log())

    name = name.removesuffix("_pp")
    if name in products:
        return products[name]()
    return one_pass(data.test, request.fields - {Field.LABELS}) + (head if request.head else 0)


def fitted(method: Method, data: Data) -> Method:
    if isinstance(method, Composite):
        validation = Data(data.train, data.train[:VALIDATION], data.head)
        return method.fit_parts(lambda part: fitted(part, data), lambda part: score(part, validation))
    request = method.request
    rows = data.train[:VALIDATION] if request.fit_on == Role.ID_VAL else data.train
    train = None if request.fit_on is None else declared(rows, method)
    return method.fit(train, data.head if request.head else None)


def declared(x: FeatureSet, method: Method) -> FeatureSet:
    return FeatureSet({f: c for f, c in x.columns.items() if f in method.request.fields})


def score(method: Method, data: Data) -> Tensor:
    batches = declared(data.test, method).without_labels().batches(BATCH)
    if isinstance(method, StreamingMethod):
        memory = method.memory()
        return torch.cat([method.score_next(rows, memory) for rows in batches])
    return torch.cat([method.score(rows) for rows in batches])


def ratio(taken: float, floor: float | None) -> str:
    return "–" if not floor else f"{taken / floor:.2f}"


def row(name: str, data: Data, size: Sizes, options: argparse.Namespace) -> list[str]:
    method = build(NODES[name], name)
    fit_time = seconds(lambda: fitted(method, data), options.repeats) if method.request.fit_on is not None else 0.0
    method = fitted(method, data)
    score_time = seconds(lambda: score(method, data), options.repeats)
    floors = fit_floor(name, data, size), score_floor(name, data, size)
    cells = [name, f"{fit_time:.3f}", ratio(fit_time, floors[0]), f"{score_time:.4f}", ratio(score_time, floors[1])]
    found = {} if options.no_peer else peers(name, data)
    # Fits first: scoring needs them.
    fits = {library: seconds(fit, options.repeats) for library, (fit, _) in found.items()}
    scores = {library: seconds(scored, options.repeats) for library, (_, scored) in found.items()}
    return [*cells, fastest(fits, 3), fastest(scores, 4)]


def fastest(times: dict[str, float], digits: int) -> str:
    """The least time with the first letter of its library; a dash where there is none or nothing to do."""
    library = min(times, key=lambda name: times[name], default="")
    return f"{times[library]:.{digits}f} {library[0]}" if library and times[library] > 1e-5 else "–"


def line(cells: Sequence[str]) -> str:
    return f"{cells[0]:<14}" + "".join(f"{cell:>13}" for cell in cells[1:])


def memory(name: str) -> str:
    """Peak memory in MiB that fitting and scoring add to the data, in a process of its own; Linux only."""
    done = subprocess.run([sys.executable, *sys.argv, "--memory-of", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "–"


def resident_mib(key: str) -> float:
    """Resident memory by Linux' account: `VmRSS` now, `VmHWM` at most since the peak was reset."""
    found = next(text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith(key))
    return int(found.split()[1]) / 2**10


def print_memory(name: str, size: Sizes) -> None:
    data = make_data(size)
    # Libraries allocate memory at their first product; it is not counted for the method.
    torch.mm(data.test.features[:64], data.test.features[:64].T)
    # Making the data peaks above what it leaves behind; 5 resets the peak (Linux only).
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_mib("VmRSS")
    score(fitted(build(NODES[name], name), data), data)
    print(f"{resident_mib('VmHWM') - before:.0f}")


def measured(*steps: Callable[[], object]) -> tuple[list[float], list[float], float]:
    """Return seconds of steps by `clock` and by the wall, and the peak of anonymous memory, in MiB above the start.

    Pages of mapped files can be dropped, these cannot. Linux only; read every few milliseconds, as Linux keeps no peak.
    """
    now, done, seen = clock(), threading.Event(), [resident_mib("RssAnon")] * 2

    def read() -> None:
        while not done.wait(0.005):
            seen[1] = max(seen[1], resident_mib("RssAnon"))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    times = [(now(), time.perf_counter())]
    for step in steps:
        step()
        times.append((now(), time.perf_counter()))
    done.set()
    reader.join()
    taken, wall = ([b - a for a, b in pairwise(of_clock)] for of_clock in zip(*times, strict=True))
    return taken, wall, seen[1] - seen[0]


def streamed_row(name: str, data: Data, size: Sizes, options: argparse.Namespace) -> list[str]:
    """Fit once from mapped files and score: both clocks, as only one counts waiting for a disk, and the memory."""
    method = build(NODES[name], name)
    taken, wall, mib = measured(lambda: fitted(method, data), lambda: score(method, data))
    if taken[1] < _SHORT:  # short enough to repeat without the cost of the first call
        taken[1] = seconds(lambda: score(method, data), options.repeats)
    floors = fit_floor(name, data, size), score_floor(name, data, size)
    cells = [cell for t, floor in zip(taken, floors, strict=True) for cell in (f"{t:.4f}", ratio(t, floor))]
    return [name, *cells, *(f"{t:.3f}" for t in wall), f"{mib:.0f}"]


def print_indexes(data: Data, size: Sizes) -> None:
    """Print what faiss' approximate indexes give up against the exact search: recall of the k nearest, and AUROC."""
    generator = torch.Generator().manual_seed(1)
    # OOD between the classes: an average of two test samples of other classes.
    mixed = data.test.features[torch.randperm(size.m, generator=generator)]
    ood = FeatureSet({Field.FEATURES: (data.test.features + mixed) / 2})
    exact, test = build(NODES["knn"], "knn").fit(data.train, None), declared(data.test, build(NODES["knn"], "knn"))
    nearest = torch.cat([exact.neighbours(rows) for rows in test.batches(BATCH)])
    print(line(("index", "fit s", "score s", "recall@k", "AUROC", "− exact", "")))
    reference = None
    for index in ("exact", "faiss_flat", "ivf", "hnsw"):
        method = replace(exact, index=index)
        start = time.perf_counter()
        method.fit(data.train, None)
        between = time.perf_counter()
        found = torch.cat([method.neighbours(rows) for rows in test.batches(BATCH)])
        taken = between - start, time.perf_counter() - between
        recall = float(
            torch.stack([torch.isin(a, b).float().mean() for a, b in zip(found, nearest, strict=True)]).mean()
        )
        scores = [torch.cat([method.score(rows) for rows in x.batches(BATCH)]).numpy() for x in (test, ood)]
        area = PooledCurve.of(*scores).auroc()
        reference = area if reference is None else reference
        times = [f"{t:.2f}" for t in taken]
        print(line((index, *times, f"{recall:.4f}", f"{area:.5f}", f"{area - reference:+.5f}")), flush=True)


def names(text: str) -> list[str]:
    """Return comma-separated names of methods."""
    chosen = text.split(",")
    for name in chosen:
        if name not in NODES:
            raise argparse.ArgumentTypeError(
                f"method '{name}' not found{did_you_mean(name, NODES)} — available: {', '.join(NODES)}"
            )
    return chosen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=list(NODES), type=names, help="comma-separated names; all by default")
    for key, default in (("train", 50_000), ("test", 50_000), ("dim", 512), ("classes", 10)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--repeats", type=int, default=3, help="timed calls, of which the median counts")
    parser.add_argument("--no-peer", action="store_true", help="leave other libraries out")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out")
    parser.add_argument("--indexes", action="store_true", help="compare KNN's approximate indexes with the exact one")
    parser.add_argument("--streamed", type=Path, metavar="FOLDER", help="training columns in files there, one run each")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    size = Sizes(options.train, options.test, options.dim, options.classes)
    if options.memory_of:
        return print_memory(options.memory_of, size)
    data = make_data(size, options.streamed)
    if options.indexes:
        return print_indexes(data, size)
    samples = f"{size.n:,} training and {size.m:,} test samples"
    title = f"{samples}, d = {size.d}, C = {size.c}, {torch.get_num_threads()} threads"
    print(title)
    beside = ("wall fit s", "wall score s") if options.streamed else ("peer fit s", "peer score s")
    print(line(("method", "fit s", "× floor", "score s", "× floor", *beside, "extra MiB")))
    for name in options.methods:
        try:
            if options.streamed:
                cells = streamed_row(name, data, size, options)
            else:
                cells = row(name, data, size, options)
                cells.append("–" if options.no_memory else memory(name))
        except OpenbenchError as error:
            print(f"{name}: {error}")
            continue
        # A line as soon as it is known: a whole table of large sizes takes minutes.
        print(line(cells), flush=True)
    return None


if __name__ == "__main__":
    main()
