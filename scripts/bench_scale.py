"""Print how fit time, score time and memory of post-hoc methods grow with the training set, under a limit of memory.

    OMP_NUM_THREADS=1 python scripts/bench_scale.py FOLDER                       # 1/16 and 1/4 of ImageNet-1k
    OMP_NUM_THREADS=1 python scripts/bench_scale.py FOLDER --parts 16,4,1 --methods knn,mds
    OMP_NUM_THREADS=1 python scripts/bench_scale.py FOLDER --parts 4,1 --drawn 4 # all of it on the disk of a quarter
    OMP_NUM_THREADS=1 python scripts/bench_scale.py FOLDER --parts 16 --methods gmm --dim 1280
    python scripts/bench_scale.py FOLDER --table                                 # what was measured, as Markdown

Training columns are synthetic (`bench_methods.py`): 2,048 features and 1,000 logits per sample, files below FOLDER that
are mapped: 1 GB, 3.9 GB and 15.7 GB. Features of mixed images (MFS) are those of training once more, which are sorted
like others. A method that learns from the stream begins with an empty memory. Each method runs in a process of its own
whose anonymous memory is limited (RLIMIT_DATA, 8 GiB): one that needs more fails, and the table says so. Pages of the
mapped files do not count, as the system may drop them; *extra* is the peak of anonymous memory above the start. Seconds
are processor time of a single thread, which other programs hardly disturb. What is measured is kept in
FOLDER/scale.jsonl: the same command goes on.

With `--drawn 4` no more than a quarter is drawn, 3.9 GB: a larger part is that quarter's files, mapped as often as it
takes. A method reads as many rows from as many addresses, of which a quarter differ. What a set of its own would take
longer is the reading from a disk, for which no processor time counts, and the way of its pages into memory.

The exponent b of t = a·n^b is that between the two largest parts; none is given below a tenth of a second, where fixed
costs count. The projection takes a fixed cost and one per sample, both from the two largest parts (the power law where
b > 1; a difference below a tenth of a second is none): fitting on n samples and scoring 1,000, on one thread of this
processor, with as many features and classes.
"""

import argparse
import ctypes
import json
import math
import mmap
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_methods import NODES, Data, Sizes, fitted, make_data, measured, names, score  # beside this
from torch import Tensor

from openbench.config.build import build
from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import OpenbenchError

IMAGENET, IMAGENET_21K, BILLION = 1_281_167, 14_197_122, 10**9
DIM, CLASSES = 2048, 1000
_SHORT = 0.1  # seconds below which an exponent says nothing
_WAIT = 3600  # processor seconds after which a method is stopped
_ROWS = mmap.PAGESIZE // 4  # so many rows of 32-bit values are whole pages, whatever the width
_PRIVATE, _FIXED, _ANONYMOUS = 2, 16, 32  # of Linux' mmap, of which Python's knows the second not
Row = Mapping[str, Any]


def limited(work: Callable[[], Row], limit: int) -> Row:
    """Return what `work` returns in a forked process with `limit` bytes of anonymous memory, or why it failed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (_WAIT, _WAIT))
        with os.fdopen(write, "w") as pipe:
            json.dump(_tried(work), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(said) if said else {"failed": f"ended by signal {status & 127}" if status & 127 else "no answer"}


def _tried(work: Callable[[], Row]) -> Row:
    try:
        return work()
    except OpenbenchError as error:
        return {"failed": str(error).split(" — ")[0]}
    except (MemoryError, RuntimeError) as error:
        short = "DefaultCPUAllocator" in str(error) or isinstance(error, MemoryError)
        return {"failed": "needs more memory than the limit" if short else str(error).splitlines()[0]}


def work(name: str, data: Data, **changed: object) -> Row:
    """Fit and score once: seconds of each, and the peak of anonymous memory above the start, in MiB."""
    method = build({**NODES[name], **changed}, name)
    (fit, scored), _, extra = measured(lambda: fitted(method, data), lambda: score(method, data))
    return {"fit": fit, "score": scored, "extra": extra}


def with_mixed(data: Data) -> Data:
    """Return the data with a column of mixed images, which is that of the images themselves."""
    columns = data.train.columns
    return replace(data, train=FeatureSet({**columns, Field.MIXED: columns[Field.FEATURES]}))


def repeated(folder: Path, drawn: FeatureSet, n: int) -> FeatureSet:
    """Return n rows: those of the files in a folder, mapped one after the other as often as it takes.

    Args:
        folder: where `make_data` has put a file per column.
        drawn: the columns in these files.
        n: rows wanted.
    """
    return FeatureSet({name: _mapped(folder / f"{name}.bin", column, n) for name, column in drawn.columns.items()})


def _mapped(file: Path, column: Tensor, n: int) -> Tensor:
    """(n, …) rows of a file of (m, …): its rows down to a whole page, then these again, until there are enough."""
    width = column[0].numel() * column.element_size()
    size, turn = n * width, (len(column) - len(column) % _ROWS) * width
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)

    def mapping(place: int | None, length: int, flags: int, descriptor: int) -> int:
        address = library.mmap(place, length, mmap.PROT_READ, flags, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"{file} cannot be mapped again")
        return int(address)

    start = mapping(None, size, _PRIVATE | _ANONYMOUS, -1)
    with file.open("rb") as opened:
        for done in range(0, size, turn):
            mapping(start + done, min(turn, size - done), mmap.MAP_SHARED | _FIXED, opened.fileno())
    held = (ctypes.c_char * size).from_address(start)  # until the process ends
    return torch.frombuffer(held, dtype=column.dtype).view(n, *column.shape[1:])


def exponent(times: Mapping[int, float]) -> float | None:
    """Return b of t = a·n^b between the two largest n, or None if the times are too short to tell.

    Args:
        times: seconds by the number of training samples.
    """
    sizes = sorted(times)[-2:]
    if len(sizes) < 2 or min(times[n] for n in sizes) < _SHORT:
        return None
    return math.log(times[sizes[1]] / times[sizes[0]]) / math.log(sizes[1] / sizes[0])


def projected(times: Mapping[int, float], wanted: int) -> float | None:
    """Return the seconds that a step takes with `wanted` training samples: a fixed cost and one per sample.

    Both come from the times with the two largest n; where the time grows faster than n, its power law holds instead. A
    difference below a tenth of a second is none. None with a single n.
    """
    sizes = sorted(times)[-2:]
    if len(sizes) < 2:
        return None
    n, more = sizes
    if times[more] - times[n] < _SHORT:
        return times[more]
    per_sample = (times[more] - times[n]) / (more - n)
    straight = times[more] + per_sample * (wanted - more)
    power = exponent(times) or 0.0
    return max(straight, times[more] * (wanted / more) ** power) if power > 1 else straight


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table, a line per method."""
    sizes = sorted({row["n"] for row in rows})
    heads = [f"{what} at {n:,}" for n in sizes for what in ("fit s", "score s", "extra MiB")]
    heads = ["method", *heads, "fit n^", "score n^", "fit, 14.2 M", "fit, 10⁹", "score 1,000, 10⁹"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for name in dict.fromkeys(row["method"] for row in rows):
        by_size = {row["n"]: row for row in rows if row["method"] == name}
        cells = [cell for n in sizes for cell in _cells(by_size.get(n))]
        done = {n: row for n, row in by_size.items() if "failed" not in row}
        if done:
            fit, scored = ({n: row[step] for n, row in done.items()} for step in ("fit", "score"))
            powers = ["" if b is None else f"{b:.2f}" for b in (exponent(fit), exponent(scored))]
            ends = [projected(fit, IMAGENET_21K), projected(fit, BILLION), projected(scored, BILLION)]
            cells += [*powers, *map(_duration, ends)]
        else:
            cells += [""] * 5
        lines.append("| " + " | ".join([f"`{name}`", *cells]) + " |")
    return lines


def _cells(row: Row | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    if "failed" in row:
        return [row["failed"], "", ""]
    return [f"{row['fit']:.3g}", f"{row['score']:.3g}", f"{row['extra']:.0f}"]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for the training columns and scale.jsonl")
    parser.add_argument("--methods", default=list(NODES), type=names, help="comma-separated names; all by default")
    parser.add_argument("--parts", default="16,4", help="of ImageNet's training set: 16 is a sixteenth, 1 all of it")
    parser.add_argument("--drawn", type=int, default=1, help="the largest part that is drawn; larger ones repeat it")
    parser.add_argument("--dim", type=int, default=DIM, help="features")
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--memory", type=float, default=8.0, help="limit of anonymous memory, in GiB")
    parser.add_argument("--table", action="store_true", help="print what was measured and end")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    size = f"{options.dim}x{options.classes}"
    kept = options.folder / ("scale.jsonl" if size == f"{DIM}x{CLASSES}" else f"scale-{size}.jsonl")
    rows = [json.loads(text) for text in kept.read_text().splitlines()] if kept.exists() else []
    if not options.table:
        sizes = sorted(IMAGENET // int(part) for part in options.parts.split(","))
        torch.set_num_threads(1)  # the processes are forks, in which a pool of threads would not run
        for n in sizes:
            drawn = min(n, IMAGENET // options.drawn)
            folder = options.folder / (str(drawn) if kept.name == "scale.jsonl" else f"{drawn}-{size}")
            data = make_data(Sizes(drawn, 1000, options.dim, options.classes), folder)
            data = with_mixed(data if drawn == n else replace(data, train=repeated(folder, data.train, n)))
            for name in options.methods:
                if not any((row["n"], row["method"]) == (n, name) for row in rows):
                    found = limited(partial(work, name, data), int(options.memory * 2**30))
                    rows.append({"n": n, "method": name, **found})
                    with kept.open("a") as file:
                        print(json.dumps(rows[-1]), file=file)
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            del data
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
