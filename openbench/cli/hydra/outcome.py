"""The folder of a sweep: its jobs, their outcomes, and the table and lines that describe them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

from openbench.cli.process import FAILED, OK
from openbench.errors import ConfigError
from openbench.results.escape import console_lines
from openbench.results.tables.render import Column, Table
from openbench.storage.files import write_whole

PLAN, OUTCOMES = "sweep.json", "outcomes"
DONE, FAILED_STATUS, NOT_APPLICABLE = "done", "failed", "not applicable"
NOT_ENDED, NOT_RUN = "not ended", "not run"
MISSING = (NOT_ENDED, NOT_RUN)
QUICK = ("skipped", NOT_APPLICABLE)  # say nothing about how long the others take


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
        objective: AUROC on validation data, where a sweeper asks for it.
    """

    code: int = OK
    message: str = ""
    status: str = DONE
    auroc: Mapping[str, float] = field(default_factory=dict)
    job: int = 0
    label: str = ""
    seconds: float = 0.0
    objective: float | None = None

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
        labels: of every job, in their order; empty if the sweeper chooses the jobs one after the other.
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
        plan = {**asdict(self), "folder": ""}
        write_whole(self.folder / PLAN, json.dumps(plan).encode())

    @classmethod
    def read(cls, folder: Path) -> "Sweep":
        """Return the sweep of a folder.

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
        files = self.folder.glob(f"{OUTCOMES}/*.json")
        begun = {outcome.job: outcome for outcome in (Outcome(**json.loads(file.read_bytes())) for file in files)}
        every = range(max([len(self.labels), *(job + 1 for job in begun)]))
        labels = dict(enumerate(self.labels))
        return [begun.get(job) or Outcome(FAILED, "", NOT_RUN, {}, job, labels.get(job, "")) for job in every]

    def title(self, job: int, label: str) -> str:
        """Return the name of a job in every line: `job 3 of 12 (method=knn seed=1)`."""
        total = f" of {max(len(self.labels), job + 1)}" if self.labels else ""
        return f"job {job + 1}{total}" + f" ({label})" * bool(label)

    def left(self) -> str:
        """Return how long the sweep will go on, from the mean of the jobs that have ended, if any has."""
        from openbench.studies.plan import duration

        outcomes = self.outcomes()
        counted = [o.seconds for o in outcomes if o.status not in (*MISSING, *QUICK)]
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
        optimised = any(o.objective is not None for o in outcomes)
        scores += [Column("validation AUROC ↑", "percent")] * optimised
        rows = tuple(
            (str(o.job + 1), o.label or None, *map(o.auroc.get, groups), *[o.objective] * optimised, o.status)
            for o in outcomes
        )
        title = " ".join(["sweep ·", self.command, *common])
        return Table(title, (Column("job"), Column("what"), *scores, Column("status")), rows)

    def summary(self) -> str:
        """Return the closing lines: each reason for a failure once, the best job, and how many jobs ended how."""
        outcomes = self.outcomes()
        lines = []
        for status in (NOT_APPLICABLE, FAILED_STATUS):
            for code, message in dict.fromkeys((o.code, o.message) for o in outcomes if o.status == status):
                which = numbers([o.job + 1 for o in outcomes if (o.status, o.message) == (status, message)])
                how = f"{status}, exit {code}" if code else status
                lines.append(console_lines(f"{how}, {which}: {message}"))
        if valued := [o for o in outcomes if o.objective is not None]:
            best = max(valued, key=lambda o: o.objective or 0.0)
            lines.append(f"best on validation: {self.title(best.job, best.label)}")
        again = "; the same command goes on" if any(o.status in MISSING for o in outcomes) else ""
        return "\n".join([*lines, f"sweep: {len(outcomes)} jobs, {self.counts()}{again} ({self.folder})"])

    def counts(self) -> str:
        """Return how many jobs ended how: `9 done, 2 failed, 1 skipped: not applicable`."""
        every = [o.status for o in self.outcomes()]
        counts = {status: every.count(status) for status in (FAILED_STATUS, NOT_APPLICABLE, NOT_ENDED, NOT_RUN)}
        counts = {DONE: len(every) - sum(counts.values()), **counts}
        counts["skipped: not applicable"] = counts.pop(NOT_APPLICABLE)
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count or what in (DONE, FAILED_STATUS))


def numbers(jobs: Sequence[int]) -> str:
    """Numbers of jobs in words: `job 3`, `jobs 1-4, 7`."""
    # Of consecutive numbers, number - place is the same.
    runs = [[job for _, job in run] for _, run in groupby(enumerate(jobs), lambda pair: pair[1] - pair[0])]
    parts = (f"{first}-{last[-1]}" if last else str(first) for first, *last in runs)
    return f"job{'s' * (len(jobs) > 1)} {', '.join(parts)}"
