"""How soon a command ends after Ctrl-C: from the key to the end of the process, pressed at moments drawn at random.

    python scripts/bench_interrupts.py --presses 10

Each process is forked from this one, which has imported all; so the moments fall into the work and not into imports,
where a signal ends the process at once. The seconds are those of a clock and mean little on a busy machine; beside them
stand the processor seconds that the process used after the key, and the load. A press after which the process was
done before it was reached counts as *done before*.
"""

import argparse
import importlib
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from openbench.__main__ import script
from openbench.cli.process.exits import INTERRUPTED, OK

WORDS = ("+benchmark=digits", "backbone=resnet8_digits", "training.recipe.epochs=2", "runtime.progress=false")
COMMANDS = {
    "run": ("run", *WORDS, "method=knn"),
    "extract": ("extract", *WORDS, "method=knn"),
    "train": ("train", *WORDS),
    "sweep": ("run", "-m", *WORDS, "method=msp,knn,mds,vim,odin"),
}


def become(command: Sequence[str], cache: Path, said: Path) -> NoReturn:
    """Become the process of a command, with a cache and results of its own."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["OPENBENCH_CACHE"], os.environ["OPENBENCH_RESULTS"] = str(cache), str(cache / "results")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv[1:] = command
    code = 70
    try:
        code = script()
        said.with_name("modules").write_text("\n".join(sys.modules))
    finally:
        sys.stdout.flush()
        os._exit(code)


def used(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def undisturbed(command: Sequence[str], folder: Path) -> float:
    """Seconds that a command takes which is left alone."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become(command, folder / "left_alone", folder / "said")
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != OK:
        raise SystemExit((folder / "said").read_text())
    seconds = time.monotonic() - start
    for name in (folder / "modules").read_text().split():
        with suppress(ImportError):  # made by a library at run time, or this script
            importlib.import_module(name)
    return seconds


def pressed(command: Sequence[str], folder: Path, after: float) -> tuple[float, float] | None:
    """Seconds, and processor seconds, from Ctrl-C to the end; None if the command was done before."""
    pid = os.fork()
    if pid == 0:
        become(command, folder / f"cache{random.getrandbits(40):x}", folder / "said")
    time.sleep(after)
    before, start = used(pid), time.monotonic()
    os.kill(pid, signal.SIGINT)
    _, status, spent = os.wait4(pid, 0)
    seconds = time.monotonic() - start
    code, text = os.waitstatus_to_exitcode(status), (folder / "said").read_text()
    if code == OK:
        return None
    if code != INTERRUPTED or "Traceback" in text:
        raise SystemExit(f"exit {code} instead of {INTERRUPTED}: {text[-3000:]}")
    return seconds, max(0.0, spent.ru_utime + spent.ru_stime - before)


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--presses", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    print(f"{'command':8} {'presses':>7} {'done before':>11} {'median s':>8} {'most s':>7} {'processor s, most':>17}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in options.commands:
            undisturbed(COMMANDS[command], folder)  # imports
            takes = undisturbed((*COMMANDS[command], "seed=1"), folder)
            moments = [chance.uniform(0.02, 0.95) * takes for _ in range(options.presses)]
            found = [pressed(COMMANDS[command], folder, moment) for moment in moments]
            ended = [each for each in found if each is not None]
            seconds, processor = zip(*(ended or [(math.nan, math.nan)]), strict=True)
            print(
                f"{command:8} {len(found):7} {len(found) - len(ended):11} {statistics.median(seconds):8.2f} "
                f"{max(seconds):7.2f} {max(processor):17.2f}   load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
