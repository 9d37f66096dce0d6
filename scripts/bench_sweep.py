"""Print what a job of a sweep costs beside its method, in processor seconds: composing, opening, measuring, writing.

    OMP_NUM_THREADS=1 python scripts/bench_sweep.py +benchmark=cifar10 backbone=resnet20_cifar10 \
        benchmark.incomplete=allow method=msp,energy,fdbd,she,mls

What is typed is the sweep, as after `run -m`; records go to a temporary folder. It runs once, so that features are
cached and modules imported, and then again with the clock of stages on processor time: what a record says of `tune`,
`fit`, `score` and `features` is the method's own, and of `metrics` is listed apart. Other programs hardly disturb it.
"""

import contextlib
import io
import json
import sys
import tempfile
import time
import types
from pathlib import Path

from openbench.__main__ import main as openbench
from openbench.engine import provenance as clock

METHOD = ("tune", "fit", "score", "features")


def carried_out(words: list[str]) -> None:
    """Carry out a command without what it prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        code = openbench(words)
    if code:
        raise SystemExit(code)


def swept(arguments: list[str], folder: Path) -> tuple[float, list[dict[str, float]]]:
    """Carry out a sweep; return its processor seconds and those of the stages of each record."""
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        openbench(["run", "-m", *arguments, f"runtime.results={folder}", "runtime.progress=false"])
    taken = time.process_time() - start
    files = sorted((folder / "records").rglob("*.json"))
    return taken, [json.loads(file.read_text())["provenance"]["seconds"] for file in files]


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    clock.time = types.SimpleNamespace(perf_counter=time.process_time)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        swept(sys.argv[1:], Path(place, "first"))
        taken, stages = swept(sys.argv[1:], Path(place, "second"))
    if not stages:
        raise SystemExit("no job wrote a record — give the sweep as after `python -m openbench run -m`")
    jobs = len(stages)
    own = sum(seconds for of in stages for name, seconds in of.items() if name in METHOD)
    metrics = sum(of.get("metrics", 0.0) for of in stages)
    beside = taken - own - metrics
    print(
        f"{jobs} jobs, {taken:.2f} processor seconds: per job {own / jobs:.3f} of the method, {metrics / jobs:.3f} of "
        f"metrics, {beside / jobs:.3f} beside both"
    )


if __name__ == "__main__":
    main()
