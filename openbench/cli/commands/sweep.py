"""The folder of a sweep: its jobs, their outcomes, the table and lines that describe them, and `sweep status`."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import click

from openbench.cli import options
from openbench.cli.output import note, print_tables
from openbench.cli.process import FAILED, OK
from openbench.config.overrides import command_line
from openbench.errors import ConfigError
from openbench.results.escape import console_lines
from openbench.results.tables.render import Column, Table
from openbench.storage.files import write_whole

PLAN, OUTCOMES = "sweep.json", "outcomes"
DONE, FAILED_STATUS, NOT_APPLICABLE = "done", "failed", "not applicable"
NOT_ENDED, NOT_RUN = "not ended", "not run"
MISSING = (NOT_ENDED, NOT_RUN)
_QUICK = ("skipped", NOT_APPLICABLE)  # say nothing about how long the others take
_LATEST = 10  # sweeps that are listed


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Args:
        code: its exit code; a check that finds problems ends with one that is not 0.
        message: one line on what was done, or the error.
        status: `done`, for runs `written`, `skipped` or `verified`; `failed`, `not applicable`, or one of MISSING.
        auroc: near and far AUROC, if there are any.
        job: its number in the sweep, from 0.
        label: how it differs from the others: `method=knn seed=1`.
        seconds: wall time.
    """

    code: int = OK
    message: str = ""
    status: str = DONE
    auroc: Mapping[str, float] = field(default_factory=dict)
    job: int = 0
    label: str = ""
    seconds: float = 0.0

    def write(self, sweep: Path) -> None:
        """Write it into the sweep's folder: a launcher may have carried the job out on another machine."""
        write_whole(sweep / OUTCOMES / f"{self.job}.json", json.dumps(asdict(self)).encode())


@dataclass(frozen=True)
class Sweep:
    """The folder of a sweep.

    Args:
        folder: in the cache, unless `hydra.sweep.dir` says another.
        command: the sub-command.
        words: its overrides, as typed.
        swept: the keys with several values.
        labels: of every job, in their order.
    """

    folder: Path
    command: str
    words: Sequence[str]
    swept: Sequence[str]
    labels: Sequence[str]

    def write(self) -> None:
        """Write its plan, and forget the outcomes of an earlier sweep in this folder."""
        for file in self.folder.glob(f"{OUTCOMES}/*.json"):
            file.unlink()
        write_whole(self.folder / PLAN, json.dumps(asdict(self), default=str).encode())

    @classmethod
    def read(cls, folder: Path) -> "Sweep":
        """Return the sweep of a folder, which may have been moved.

        Raises:
            ConfigError: there is none.
        """
        try:
            return cls(**{**json.loads((folder / PLAN).read_bytes()), "folder": folder})
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"'{folder}' is not the folder of a sweep ({error})") from error

    def begun(self) -> bool:
        """Whether any job has begun."""
        return any(self.folder.glob(f"{OUTCOMES}/*.json"))

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of every job, in their order."""
        found = [json.loads(file.read_bytes()) for file in self.folder.glob(f"{OUTCOMES}/*.json")]
        # Sweeps of earlier versions have an objective.
        begun = {one["job"]: Outcome(**{key: one[key] for key in one if key != "objective"}) for one in found}
        return [begun.get(job, Outcome(FAILED, "", NOT_RUN, {}, job, label)) for job, label in enumerate(self.labels)]

    def title(self, job: int, label: str) -> str:
        """Return the name of a job in every line: `job 3 of 12 (method=knn seed=1)`."""
        return f"job {job + 1} of {len(self.labels)}" + f" ({label})" * bool(label)

    def left(self) -> str:
        """Return how long the sweep will go on, from the mean of the jobs that have ended, if any has."""
        from openbench.studies.plan import duration

        outcomes = self.outcomes()
        counted = [o.seconds for o in outcomes if o.status not in (*MISSING, *_QUICK)]
        missing = [o.status for o in outcomes if o.status in MISSING]
        if not counted or not missing:
            return ""
        seconds = sum(counted) / len(counted) * len(missing) / max(1, missing.count(NOT_ENDED))
        return f", about {duration(seconds)} left"

    def table(self) -> Table:
        """Return a row for each job: its label, its AUROCs and its status."""
        outcomes = self.outcomes()
        groups = [group for group in ("near", "far") if any(group in o.auroc for o in outcomes)]
        scores = [Column(f"{group} AUROC ↑", "percent") for group in groups]
        common = [word for word in self.words if word.lstrip("+").partition("=")[0] not in self.swept]
        rows = [(str(o.job + 1), o.label or None, *map(o.auroc.get, groups), o.status) for o in outcomes]
        title = " ".join(["sweep ·", self.command, *common])
        return Table(title, (Column("job"), Column("what"), *scores, Column("status")), tuple(rows))

    def summary(self) -> str:
        """Return the closing lines: each reason for a failure once, and how many jobs ended how."""
        outcomes = self.outcomes()
        lines = []
        for status in (NOT_APPLICABLE, FAILED_STATUS):
            for code, message in dict.fromkeys((o.code, o.message) for o in outcomes if o.status == status):
                which = numbers([o.job + 1 for o in outcomes if (o.status, o.message) == (status, message)])
                how = f"{status}, exit {code}" if code else status
                lines.append(console_lines(f"{how}, {which}: {message}"))
        again = "; the same command goes on" if any(o.status in MISSING for o in outcomes) else ""
        return "\n".join([*lines, f"sweep: {len(outcomes)} jobs, {self.counts()}{again} ({self.folder})"])

    def counts(self) -> str:
        """Return how many jobs ended how: `9 done, 2 failed, 1 skipped: not applicable`."""
        every = [o.status for o in self.outcomes()]
        counts = {status: every.count(status) for status in (FAILED_STATUS, NOT_ENDED, NOT_RUN, NOT_APPLICABLE)}
        counts = {DONE: len(every) - sum(counts.values()), **counts}
        counts["skipped: not applicable"] = counts.pop(NOT_APPLICABLE)
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count or what in (DONE, FAILED_STATUS))


def numbers(jobs: Sequence[int]) -> str:
    """Numbers of jobs in words: `job 3`, `jobs 1-4, 7`."""
    # Of consecutive numbers, number - place is the same.
    runs = [[job for _, job in run] for _, run in groupby(enumerate(jobs), lambda pair: pair[1] - pair[0])]
    parts = (f"{first}-{last[-1]}" if last else str(first) for first, *last in runs)
    return f"job{'s' * (len(jobs) > 1)} {', '.join(parts)}"


@click.group(cls=options.Group, no_args_is_help=False)
def sweep() -> None:
    """Show how far sweeps are."""


@sweep.command()
@click.argument("folder", required=False, type=options.FILE, metavar="[FOLDER]")
@options.table_format()
@options.cache
def status(args: Namespace) -> int:
    """Show which jobs of a sweep are done, running or failed, and why; without FOLDER, list the latest sweeps.

    FOLDER is that of a sweep, or its name in the list. `not ended`: the job runs, or its process was killed. `not run`:
    it has not begun. The exit code is 0 if all jobs are done, else 1, so that a script can repeat a sweep until then.

    Examples:
      python -m openbench sweep status
      python -m openbench sweep status 2026-11-22T17-27-38-123456-16617
    """
    sweeps, folder = args.cache / "sweeps", args.folder
    if folder is None:
        print_tables([_overview(sweeps)], args.form)
        return OK
    one = Sweep.read(folder if (folder / PLAN).is_file() else sweeps / folder)
    outcomes = one.outcomes()
    print_tables([one.table()], args.form)
    note(one.summary(), args.form)
    if any(outcome.status in MISSING for outcome in outcomes):
        note(f"to run the missing jobs: {command_line(one.command, ['-m', *one.words])}", args.form)
    return FAILED if any(outcome.code for outcome in outcomes) else OK


def _overview(folder: Path) -> Table:
    """The latest sweeps, with how many of their jobs ended how."""
    rows = []
    for file in sorted(folder.glob(f"*/{PLAN}"), reverse=True)[:_LATEST]:
        with suppress(ConfigError):  # of another version
            one = Sweep.read(file.parent)
            rows.append((one.folder.name, one.counts(), " ".join((one.command, "-m", *one.words))))
    notes = () if rows else (f"no sweep below '{folder}'",)
    return Table("sweeps, the latest first", tuple(map(Column, ("sweep", "jobs", "command"))), tuple(rows), notes=notes)
