"""What it costs to check every byte that is read: the share of a run on cached features.

    python scripts/bench_checking.py --rounds 5 -- +benchmark=cifar10 backbone=resnet20_cifar10

The features are extracted first, if they are not in the cache. Then each method runs `--rounds` times in this process
on cached features and into a new folder of results, with the functions of openbench.digest timed where they are called:
they are the only hashing in the project. *Checks* are digests of what is in files, reading them included, of what is
read and of what is written; *names* are the digests of configs by which files and records are found. Processor time of
all threads is measured, so the shares hold on a busy machine.
"""

import argparse
import contextlib
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import openbench.digest
from openbench.__main__ import main as openbench_main

METHODS = ("msp", "energy", "knn", "mds", "vim")
CHECKS = ("file_sha256", "bytes_sha256", "file_digest", "array_sha256", "row_digests")
NAMES = ("digest",)


class Meter:
    """Processor seconds spent in calls, those within other calls counted once."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are counted."""

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            start, self._depth = time.process_time(), self._depth + 1
            try:
                return function(*arguments, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.process_time() - start

        return call

    def attach(self, names: Sequence[str]) -> None:
        """Time functions of openbench.digest in every module that has imported them."""
        for name in names:
            plain = getattr(openbench.digest, name)
            counted = self.timed(plain)
            for module in [m for key, m in sys.modules.items() if key.partition(".")[0] == "openbench"]:
                for own in [key for key, value in vars(module).items() if value is plain]:
                    setattr(module, own, counted)


def scored(words: Sequence[str], method: str) -> float:
    """Processor seconds of a run into a new folder of results."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        os.environ["OPENBENCH_RESULTS"] = folder
        start = time.process_time()
        code = openbench_main(["run", *words, f"method={method}", "runtime.progress=false"])
        seconds = time.process_time() - start
    if code:
        raise SystemExit(f"the run with {method} ended in {code}: {said.getvalue()[-2000:]}")
    return seconds


def main() -> None:
    """Print the share for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", default=["+benchmark=digits"], help="of `run`, without the method")
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for method in options.methods:
        scored(options.words, method)  # trains, extracts and imports what is missing
    checks, names = Meter(), Meter()
    checks.attach(CHECKS)
    names.attach(NAMES)
    hasher = openbench.digest.BlockHasher
    hasher.update, hasher.hexdigest = checks.timed(hasher.update), checks.timed(hasher.hexdigest)
    print(f"{' '.join(options.words)}; processor seconds, medians of {options.rounds}")
    print(f"{'method':8} {'run':>7} {'checks':>7} {'share':>6} {'names':>7} {'share':>6}")
    for method in options.methods:
        found = []
        for _ in range(options.rounds):
            checks.seconds = names.seconds = 0.0
            run = scored(options.words, method)
            found.append((run, checks.seconds, checks.seconds / run, names.seconds, names.seconds / run))
        run, *spent = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{method:8} {run:7.3f} {spent[0]:7.3f} {spent[1]:6.1%} {spent[2]:7.3f} {spent[3]:6.1%}", flush=True)


if __name__ == "__main__":
    main()
