"""How the jobs of a sweep ended: files that they leave in its folder, an estimate, and the closing lines and table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from openbench.compose.sweep import label
from openbench.errors import ConfigError
from openbench.results.escape import console_lines
from openbench.results.tables.render import Cell, Column, Table
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

OUTCOME = "outcome.json"
PLAN = "sweep.json"
ALIVE = ".alive"  # a lock that the process of a sweep, or of a job, holds as long as it lives
RUNNING, DONE, FAILED_STATUS, NOT_APPLICABLE = "running", "done", "failed", "not applicable"
WAITING = "waiting"  # it would wait for what another job makes: its sweep gives it out again
UNFINISHED = (RUNNING, WAITING)
QUICK = ("skipped", NOT_APPLICABLE)  # say nothing about how long the others take
_GAP = 3  # between two columns
_ROOM = 40  # characters for the columns of names, so that the table fits 80; beyond it they share one
NAMES = ("benchmark", "method", "backbone", "training", "seed")


@dataclass(frozen=True)
class Outcome:
    """How a job ended; written into the job's folder, since a launcher may have run it on another machine.

    Args:
        job: its number in the sweep, from 0.
        overrides: what it was given.
        code: its exit code.
        message: the error, or what was done.
        seconds: wall time.
        status: `running` while it runs; then `done`, for runs `written`, `skipped` or `verified`, or `failed` or
            `not applicable`; or `waiting`, if it is given out again when others have ended.
        names: what tells it apart: benchmark, method, backbone, training, seed and the other keys that are swept over.
        auroc: near and far AUROC, if there are any.
        record: the file of its record, if it leaves one.
    """

    job: int
    overrides: Sequence[str]
    code: int
    message: str
    seconds: float
    status: str = DONE
    names: Mapping[str, str] = field(default_factory=dict)
    auroc: Mapping[str, float] = field(default_factory=dict)
    record: str = ""

    def write(self, folder: Path) -> None:
        """Write it into the job's folder; a reader sees the old one or the new one, never a part."""
        write_sealed(folder / OUTCOME, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, file: Path) -> "Outcome | None":
        """Return the outcome in a file; None if there is none, or if it has changed since it was written."""
        try:
            found = json.loads(read_sealed(file))  # another version may have written other keys
            return cls(**{field.name: found[field.name] for field in fields(cls) if field.name in found})
        except (FileNotFoundError, DamagedError, TypeError):
            return None


@dataclass(frozen=True)
class Plan:
    """What every job of a sweep knows about the whole; a file in the sweep's folder.

    Args:
        jobs: how many there are.
        swept: the keys with several values.
        later: numbers of jobs that wait until the others have ended.
        command: the sub-command.
        words: the overrides of the sweep, as typed.
        names: what tells each job from the others: `method=knn seed=1`.
        patient: whether jobs wait for what others make, rather than leave their place.
    """

    jobs: int
    swept: tuple[str, ...]
    later: tuple[int, ...] = ()
    command: str = ""
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    patient: bool = False

    def write(self, folder: Path) -> None:
        """Write it into the sweep's folder."""
        write_sealed(folder / PLAN, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> "Plan":
        """Return the plan of the sweep in a folder.

        Raises:
            ConfigError: the file is missing or has changed since it was written.
        """
        try:
            found = json.loads(read_sealed(folder / PLAN))
        except (FileNotFoundError, DamagedError) as error:
            raise ConfigError(
                f"'{folder / PLAN}' of a running sweep is missing or was changed — give the same command again"
            ) from error
        said = {key: tuple(found.get(key, ())) for key in ("swept", "later", "words", "names")}
        return cls(found["jobs"], command=found.get("command", ""), patient=bool(found.get("patient")), **said)

    def title(self, outcome: Outcome) -> str:
        """Return how a job is called in every line: `job 3 of 12 (method=knn seed=1)`."""
        apart = label(outcome.overrides, self.swept)
        return f"job {outcome.job + 1} of {self.jobs}" + f" ({apart})" * bool(apart)

    def left(self, outcomes: Sequence[Outcome]) -> str:
        """Return how long the sweep will go on, from the mean of the jobs that have ended; empty before there are any.

        Args:
            outcomes: of the jobs that have ended or are running.
        """
        ended = [o for o in outcomes if o.status not in UNFINISHED]
        counted = [o.seconds for o in ended if o.status not in QUICK]
        if not counted:
            return ""
        at_once = max(1, len(outcomes) - len(ended))
        seconds = sum(counted) / len(counted) * (self.jobs - len(ended)) / at_once
        return f", about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a time as people say it: `40 s`, `4 min`, `2 h 10 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def outcome_files(folder: Path) -> dict[Path, Outcome]:
    """Return the outcomes that jobs left in a folder, by their files."""
    found = {file: Outcome.read(file) for file in folder.rglob(OUTCOME)}
    return {file: outcome for file, outcome in found.items() if outcome is not None}


def read_outcomes(folder: Path) -> list[Outcome]:
    """Return the outcomes that jobs left in a folder, in the order of their numbers."""
    return sorted(outcome_files(folder).values(), key=lambda outcome: outcome.job)


def due(folder: Path) -> frozenset[int]:
    """Return the numbers of the jobs that are to be given out: they have not ended, and need not wait for the others.

    Args:
        folder: of the sweep.
    """
    plan = Plan.read(folder)
    ended = {outcome.job for outcome in read_outcomes(folder) if outcome.status not in UNFINISHED}
    return frozenset(range(plan.jobs)) - ended - frozenset(plan.later)


def table(outcomes: Sequence[Outcome], swept: Sequence[str]) -> Table:
    """Return what a sweep made, a row per job, with a column for every name that is not the same in all of them.

    Args:
        outcomes: of all jobs that began.
        swept: the keys with several values.
    """
    every = list(dict.fromkeys((*NAMES, *swept)))
    values = {name: {o.names.get(name, "") for o in outcomes} for name in every}
    shown = [name for name in every if len(values[name]) > 1]
    common = [f"{name} {next(iter(values[name]))}" for name in NAMES if name not in shown and any(values[name])]
    if sum(max(map(len, (name, *values[name]))) + _GAP for name in shown) > _ROOM:
        titles, cells = [", ".join(shown)], [[" ".join(o.names.get(name, "") for name in shown)] for o in outcomes]
    else:
        titles, cells = shown, [[o.names.get(name, "") for name in shown] for o in outcomes]
    groups = [group for group in ("near", "far") if any(group in o.auroc for o in outcomes)]
    scores = [Column(f"{group} AUROC ↑", "percent") for group in groups]
    rows: list[tuple[Cell, ...]] = []
    for o, named in zip(outcomes, cells, strict=True):
        status = "interrupted" if o.status in UNFINISHED else o.status
        rows.append((str(o.job + 1), *(cell or None for cell in named), *map(o.auroc.get, groups), status))
    columns = (Column("job"), *map(Column, titles), *scores, Column("status"))
    return Table(" · ".join(["sweep", *common]), columns, tuple(rows))


def summary(outcomes: Sequence[Outcome], plan: Plan, folder: Path) -> str:
    """Return the closing lines of a sweep: how many jobs ended how, and why those failed that did, each reason once."""
    failed = [o for o in outcomes if o.code and o.status not in UNFINISHED]
    passed = [o for o in outcomes if o.status == NOT_APPLICABLE]
    stopped = [o for o in outcomes if o.status in UNFINISHED]
    counts = [f"{len(outcomes) - len(failed) - len(passed) - len(stopped)} done", f"{len(failed)} failed"]
    counts += [f"{len(passed)} skipped: not applicable"] * bool(passed)
    counts += [f"{len(stopped)} interrupted"] * bool(stopped)
    missing = plan.jobs - len(outcomes)
    counts += [f"{missing} not run"] * (missing > 0)
    lines = []
    for found, what in ((passed, NOT_APPLICABLE), (failed, FAILED_STATUS)):
        for code, message in dict.fromkeys((o.code, o.message) for o in found):
            which = numbers([o.job + 1 for o in found if (o.code, o.message) == (code, message)])
            lines.append(console_lines(f"{what}" + f", exit {code}" * bool(code) + f", {which}: {message}"))
    again = "; the same command goes on" if stopped or missing > 0 else ""
    lines.append(f"sweep: {plan.jobs} jobs, {', '.join(counts)}{again} ({folder})")
    return "\n".join(lines)


def numbers(jobs: Sequence[int]) -> str:
    """Numbers of jobs in words: `job 3`, `jobs 1-4, 7`."""
    parts: list[str] = []
    for job in jobs:
        first, _, last = parts[-1].partition("-") if parts else ("", "", "")
        if parts and int(last or first) == job - 1:
            parts[-1] = f"{first}-{job}"
        else:
            parts.append(str(job))
    return f"job{'s' * (len(jobs) > 1)} {', '.join(parts)}"
