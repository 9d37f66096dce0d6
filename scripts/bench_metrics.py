"""Print how long metrics take, as ratios to one np.argsort of the pooled scores in the same process.

    OMP_NUM_THREADS=1 python scripts/bench_metrics.py            # about a minute
    OMP_NUM_THREADS=1 python scripts/bench_metrics.py --quick    # a few seconds, small sizes only

Peers (scikit-learn, pytorch-ood, oodeel) appear beside ours when they are installed.
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from openbench.metrics.conformal import corrections
from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.curve import PooledCurve
from openbench.metrics.intervals import bootstrap_keys, delong
from openbench.metrics.options import MetricOptions
from openbench.metrics.suite import IdSide, Pair, Setting, evaluate_pair
from openbench.metrics.threshold import tnr_threshold


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor time of `work` after one warm-up call: waiting for other processes does not count."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def peak_mib(work: Callable[[], object]) -> float:
    """Return the peak of numpy's allocations during `work`, in MiB."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def scores(n: int, m: int, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.normal(size=n).astype(dtype).astype(np.float64)
    return ids, (rng.normal(size=m) + 1).astype(dtype).astype(np.float64), (rng.random(n) < 0.1).astype(np.float64)


def all_families(ids: np.ndarray, ood: np.ndarray, losses: np.ndarray) -> object:
    """Everything about one pair that needs no resampling, the sorting of the ID side included."""
    options = MetricOptions(replicates=0)
    side = IdSide.of(ids, losses)
    thresholds = {"95tnr": tnr_threshold(side.ordered)}
    # Simes' table has a closed form; calibrating a table is timed by itself.
    table = correction_table(ids.size, options.delta, "simes")
    calibration = ids[: ids.size // 10] + 0.1
    setting = Setting(options, side, (ids, ood), (), calibration, thresholds, table)
    return evaluate_pair(Pair.of(side, ood), setting)


def peers(ids: np.ndarray, ood: np.ndarray) -> dict[str, Callable[[], object]]:
    """The four usual numbers (AUROC, both AUPR, FPR@95) by installed peers."""
    labels, pooled = np.repeat([0, 1], [ids.size, ood.size]), np.concatenate([ids, ood])
    found: dict[str, Callable[[], object]] = {}

    def sklearn() -> object:
        fpr, tpr, _ = metrics.roc_curve(labels, pooled)
        area = metrics.auc(fpr, tpr)
        curves = [metrics.precision_recall_curve(y, s) for y, s in ((labels, pooled), (1 - labels, -pooled))]
        return area, fpr[np.argmax(tpr >= 0.95)], [metrics.auc(r, p) for p, r, _ in curves]

    try:
        from sklearn import metrics

        found["scikit-learn: AUROC, 2 AUPR, FPR@95"] = sklearn
    except ImportError:
        pass
    try:
        from openbench._compat import prepare_torchvision

        prepare_torchvision()
        import torch
        from pytorch_ood.metrics import OODMetrics

        y, s = torch.tensor(1 - 2 * labels), torch.tensor(pooled)

        def pytorch_ood() -> object:
            metric = OODMetrics()
            metric.update(s, y)
            return metric.compute()

        found["pytorch-ood: AUROC, AUTC, 2 AUPR, FPR@95"] = pytorch_ood
    except ImportError:
        pass
    return found


def oodeel_seconds(ids: np.ndarray, ood: np.ndarray) -> float | None:
    """Return oodeel's time for AUROC and FPR@95, or None if it is not installed.

    It scans all scores again at every fourth of them as a threshold: quadratic, 82 minutes at a million a side. A
    thousandth of the thresholds is timed and the time multiplied.
    """
    try:
        from oodeel.eval.metrics import bench_metrics
    except ImportError:
        return None
    thousandth = 1000
    return thousandth * seconds(lambda: bench_metrics((ids, ood), step=4 * thousandth), 1)


def pair_table(size: int, repeats: int, dtype: type) -> Table:
    ids, ood, losses = scores(size, size, dtype)
    pooled = np.concatenate([ids, ood])
    floor = seconds(lambda: np.argsort(pooled), repeats)
    table = Table(title=f"{size:,} ID + {size:,} OOD, {np.dtype(dtype)} values; one np.argsort = {1e3 * floor:.2f} ms")
    for column in ("work", "ms", "× argsort", "peak MiB"):
        table.add_column(column, justify="left" if column == "work" else "right")
    rows: dict[str, Callable[[], object]] = {
        "sort and merge (PooledCurve)": lambda: PooledCurve.of(ids, ood),
        "ranking family (13 numbers)  (target 2.5)": lambda: PooledCurve.of(ids, ood).ranking(),
        "all families, DeLong included  (target 5)": lambda: all_families(ids, ood, losses),
        **peers(ids, ood),
    }
    for name, work in rows.items():
        taken = seconds(work, repeats)
        table.add_row(name, f"{1e3 * taken:.1f}", f"{taken / floor:.2f}", f"{peak_mib(work):.0f}")
    taken = oodeel_seconds(ids, ood)
    if taken is not None:
        table.add_row("oodeel: AUROC, FPR@95 (scaled × 1000)", f"{1e3 * taken:.0f}", f"{taken / floor:.0f}", "")
    return table


def correction_times(sizes: tuple[int, ...]) -> Table:
    table = Table(title="Conformal corrections, first call, seconds (target: < 2 at n = 45,000)")
    for column in ("correction", "δ", *(f"n = {n:,}" for n in sizes)):
        table.add_column(column, justify="right")
    for correction in ("monte_carlo", "equal_local_level"):
        for delta in (0.01, 0.05):
            taken = []
            for n in sizes:
                corrections._table.cache_clear()
                corrections._level.cache_clear()
                start = time.perf_counter()
                correction_table(n, delta, correction)
                taken.append(f"{time.perf_counter() - start:.2f}")
            table.add_row(correction, f"{delta:g}", *taken)
    return table


def interval_times(replicates: int) -> Table:
    ids, ood, _ = scores(10_000, 100_000, np.float32)
    curve = PooledCurve.of(ids, ood)
    table = Table(title="Intervals, 10,000 ID + 100,000 OOD, seconds (target: < 5)")
    for column in ("work", "s"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for keys in (MetricOptions().bootstrap_metrics, ("fpr95", "aupr_in", "aupr_out")):
        taken = seconds(lambda chosen=keys: bootstrap_keys(curve, chosen, replicates), 1)
        table.add_row(f"{replicates:,} replicates: {', '.join(keys)}", f"{taken:.4f}")
    table.add_row("DeLong", f"{seconds(lambda: delong(curve), 5):.4f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    quick = parser.parse_args().quick
    console = Console()
    for size in (100_000,) if quick else (100_000, 1_000_000):
        for dtype in (np.float32, np.float64):
            console.print(pair_table(size, 9 if size < 10**6 else 5, dtype))
    console.print(correction_times((9_000,) if quick else (9_000, 45_000)))
    console.print(interval_times(100 if quick else 1000))


if __name__ == "__main__":
    main()
