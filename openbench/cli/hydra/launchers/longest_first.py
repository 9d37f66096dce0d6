"""The jobs of a local sweep side by side: the longest first, and no more at a time than memory holds."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from openbench.memory import available

_STAGES = ("tune", "fit", "score")
_FIRST_GUESS = 2048  # MiB of a process whose method has no record here: torch and the data of a small benchmark
_KEPT_FREE = 0.1  # of the memory that is free when the sweep begins: other programs grow too
ALL = -1  # `hydra.launcher.n_jobs` as Hydra sets it: every processor
Kind = tuple[str, str]  # benchmark and method


@dataclass(frozen=True)
class Cost:
    """What a method took.

    Args:
        seconds: of tuning, fitting and scoring.
        mib: peak memory of its process.
    """

    seconds: float
    mib: float


def measured(results: Path, jobs: Iterable[Sequence[str]]) -> dict[Kind, Cost]:
    """Return what the methods of jobs took on their benchmarks, by the records in a results folder.

    The longest of several counts. A process that has carried out several jobs has the peak of the largest, so the least
    memory counts.

    Args:
        results: the folder.
        jobs: their overrides; those without a record are left out.
    """
    found: dict[Kind, Cost] = {}
    for kind in set(map(kind_of, jobs)):
        files = results.glob("records/{}/*/{}/*.json".format(*map(escape, kind))) if all(kind) else ()
        costs = [cost for file in files if (cost := _of_record(file)) is not None]
        if costs:
            found[kind] = Cost(max(cost.seconds for cost in costs), min(cost.mib for cost in costs))
    return found


def kind_of(job: Sequence[str]) -> Kind:
    """Return the benchmark and the method that a job's overrides name; empty where they name none."""
    named = dict(text.lstrip("+").partition("=")[::2] for text in job)
    return named.get("benchmark", ""), named.get("method", "")


def _of_record(file: Path) -> Cost | None:
    """What a record says of its run; None if it says nothing, or cannot be read: then it does not help."""
    try:
        provenance = json.loads(file.read_bytes())["provenance"]
        seconds = sum(float(provenance["seconds"].get(stage, 0.0)) for stage in _STAGES)
        return Cost(seconds, max(map(float, provenance["peak_mib"].values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def order(jobs: Sequence[Sequence[str]], costs: Mapping[Kind, Cost]) -> list[int]:
    """Return the places of jobs in the order in which they begin: unknown ones, then the longest.

    A long job that begins last runs alone while the other processors idle; one of unknown length may be long.

    Args:
        jobs: their overrides.
        costs: by benchmark and method.
    """

    def length(place: int) -> float:
        cost = costs.get(kind_of(jobs[place]))
        return float("inf") if cost is None else cost.seconds

    return sorted(range(len(jobs)), key=lambda place: (-length(place), place))


def at_once(jobs: Sequence[Sequence[str]], costs: Mapping[Kind, Cost], cores: int, free_mib: float) -> int:
    """Return how many jobs run at a time: one on each core, and so few that those that need most memory fit together.

    Args:
        jobs: their overrides.
        costs: by benchmark and method.
        cores: of the machine.
        free_mib: memory that is free.
    """
    unknown = Cost(0.0, _FIRST_GUESS)
    needs = sorted((costs.get(kind_of(job), unknown).mib for job in jobs), reverse=True)
    room, fitting = free_mib * (1 - _KEPT_FREE), 0
    while fitting < min(len(needs), cores) and sum(needs[: fitting + 1]) <= room:
        fitting += 1
    return max(1, fitting)


def free_mib(root: Path = Path("/")) -> float:
    """Return the memory that this program can still get, in MiB: of the machine, or of the batch job or container.

    Args:
        root: where `proc` and `sys` are.
    """
    return min([available() / 2**20, *(_left_in(folder, *names) for folder, names in _groups(root))])


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str]]]:
    """The control groups that may hold less memory than the machine, and what their limit and their use are called."""
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            base, names = root / "sys" / "fs" / "cgroup", ("memory.max", "memory.current")
        elif "memory" in kinds.split(","):
            base = root / "sys" / "fs" / "cgroup" / "memory"
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        inner = Path(path.lstrip("/"))
        for part in (inner, *inner.parents):  # the last one is the base itself
            yield base / part, names


def _left_in(folder: Path, limit: str, use: str) -> float:
    """What may still be taken in a control group, in MiB; what the system only keeps of files counts as free."""
    try:
        stated = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        kept = int(stated.get("total_inactive_file", stated.get("inactive_file", 0)))
        most, taken = (int((folder / name).read_text(encoding="ascii")) for name in (limit, use))
    except (OSError, ValueError):  # no group, no limit: `max`
        return float("inf")
    return (most - taken + kept) / 2**20


def cores() -> int:
    """Return the processors that this process may use, as joblib counts them: also within a container's share."""
    from joblib import cpu_count

    return int(cpu_count())


@contextmanager
def longest_first(results: Path, say: Callable[[str], object]) -> Iterator[None]:
    """Have joblib's launcher begin the longest jobs of a sweep first, on as many processors as memory allows.

    A number of processes that was typed, `hydra.launcher.n_jobs=4`, is kept.

    Args:
        results: the results folder, whose records say what methods took.
        say: receives a line on how many jobs run at a time.
    """
    from hydra_plugins.hydra_joblib_launcher import _core

    parallel = _core.Parallel

    class LongestFirst:
        """joblib's pool of processes, with the order and the number of jobs at a time chosen by what they take."""

        def __init__(self, n_jobs: int, **named: Any) -> None:
            self._typed, self._named = n_jobs, named

        def __call__(self, iterable: Iterable[tuple[Any, Sequence[Any], Mapping[str, Any]]]) -> list[Any]:
            """Carry out Hydra's `execute_job(number, overrides, …)` for each; return their results in that order."""
            tasks = list(iterable)
            jobs = [list(arguments[1]) for _, arguments, _ in tasks]
            costs = measured(results, jobs)
            count = self._typed if self._typed != ALL else _fitting(jobs, costs, say)
            places = order(jobs, costs)
            done = parallel(n_jobs=count, **self._named)(tasks[place] for place in places)
            found = dict(zip(places, done, strict=True))
            return [found[place] for place in range(len(tasks))]

    _core.Parallel = LongestFirst
    try:
        yield
    finally:
        _core.Parallel = parallel


def _fitting(jobs: Sequence[Sequence[str]], costs: Mapping[Kind, Cost], say: Callable[[str], object]) -> int:
    """How many jobs run at a time on this machine now; says so if memory and not its processors is the reason."""
    most, free = min(cores(), len(jobs)), free_mib()
    count = at_once(jobs, costs, most, free)
    if count < most:
        say(
            f"sweep: {count} jobs at a time, not {most}: those that need most memory do not fit into the "
            f"{free:,.0f} MiB that are free — hydra.launcher.n_jobs={most} runs {most} all the same"
        )
    return count
