"""Print how far AUROCs move, and what a pass through the network takes, when it computes in fewer bits.

    OMP_NUM_THREADS=1 python scripts/compare_precisions.py bf16 +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow method=msp,energy,react,knn

The first word names precisions, separated by commas; the rest is a sweep, as after `run -m`. Each extracts features of
its own into the cache; records go to a temporary folder. Seconds are processor time of a single thread.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_sweep import carried_out  # beside this script

GROUPS = ("near", "far")


def areas(way: str, arguments: list[str], folder: Path) -> dict[str, dict[str, float]]:
    """Carry out a sweep in one precision; return the AUROC of each method by group of sets."""
    given = [f"backbone.precision={way}", f"runtime.results={folder}", "runtime.progress=false"]
    carried_out(["run", "-m", *arguments, *given])
    found: dict[str, dict[str, float]] = {}
    for file in sorted((folder / "records").rglob("*.json")):
        record: dict[str, Any] = json.loads(file.read_text())
        metrics = record["metrics"]
        if record["method"]["name"] in found:
            raise SystemExit(f"several runs of method '{record['method']['name']}' — allowed: one of each method")
        found[record["method"]["name"]] = {group: metrics[group]["auroc"] for group in GROUPS if group in metrics}
    return found


def extracted(way: str, arguments: list[str]) -> float:
    """Fill the cache with features of all sets but training; return the processor seconds, few if they are there."""
    kept = [text for text in arguments if not text.startswith(("method", "tune", "metrics"))]
    start = time.process_time()
    carried_out(["extract", *kept, "method=msp", f"backbone.precision={way}", "runtime.progress=false"])
    return time.process_time() - start


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    others, arguments = sys.argv[1].split(","), sys.argv[2:]
    with tempfile.TemporaryDirectory() as place:
        found = {}
        for way in ("fp32", *others):
            seconds = extracted(way, arguments)
            print(f"{way}: {seconds:.1f} processor seconds to extract")
            found[way] = areas(way, arguments, Path(place, way))
    print("\n| method | " + " | ".join(f"{g} AUROC fp32 | " + " | ".join(others) for g in GROUPS) + " |")
    print("| --- |" + " ---: |" * (len(GROUPS) * (1 + len(others))))
    for name, exact in found["fp32"].items():
        cells = []
        for group in GROUPS:
            area = exact.get(group)
            moved = [found[other].get(name, {}).get(group) for other in others]
            cells.append("" if area is None else f"{100 * area:.3f}")
            cells += ["" if area is None or after is None else f"{100 * (after - area):+.4f}" for after in moved]
        print(f"| `{name}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
