"""Jobs that submitit hands to Slurm, or to processes here: one that is killed has failed, and the others go on."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from openbench.cli.hydra.killed import fail_unless_ended
from openbench.cli.hydra.outcome import Outcome, due
from openbench.cli.process import FAILED, OK
from openbench.errors import OpenbenchError

# Slurm's names for a job that will not go on. A preempted one may; one that Slurm has forgotten will not.
GONE = "no longer known to Slurm"
ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", GONE)
)
_RULE = "-" * 22  # above and below a trace that submitit quotes
_NUMBER = 2  # which argument of a launcher's job is its number in the sweep
_SOONEST, _LATEST = 2.0, 30.0  # seconds between two questions to Slurm


class Queue:
    """What `squeue` says of submitted jobs, in the place of submitit's watcher.

    That one asks `sacct`, which only clusters with accounting have, and after an hour asks every ten minutes.
    """

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._missing: dict[str, float] = {}  # since when, by `time.monotonic`
        self._begun = self._asked = float("-inf")
        self._complained = False

    def register_job(self, job_id: str) -> None:
        """Ask about a job from now on."""
        self._states[job_id] = "UNKNOWN"
        self._begun, self._asked = time.monotonic(), float("-inf")

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return the state of a job in Slurm's words.

        Args:
            job_id: as Slurm shows it: `12`, or `12_3` in an array.
            mode: `standard` asks now and then, `force` at once, `cache` never.
        """
        now = time.monotonic()
        wait = min(_LATEST, max(_SOONEST, (now - self._begun) / 10))
        if mode == "force" or (mode == "standard" and now - self._asked > wait):
            self._ask()
            self._asked = time.monotonic()
        return self._states.get(job_id, "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether a job has ended, well or not."""
        return self.get_state(job_id, mode) in ENDED

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """Return what submitit shows of a job."""
        return {"State": self.get_state(job_id, mode)}

    def _ask(self) -> None:
        command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i %T"]
        try:
            done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_LATEST, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            self._complain(error)
            return
        found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) > 1)
        for job_id, state in self._states.items():
            if state in ENDED:
                continue
            if job_id in found:
                self._states[job_id] = found[job_id].strip()
                self._missing.pop(job_id, None)
            # One answer may come from a Slurm that is just starting, and two from the same moment.
            elif time.monotonic() - self._missing.setdefault(job_id, time.monotonic()) >= _SOONEST:
                self._states[job_id] = GONE

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            said = (getattr(error, "stderr", None) or str(error)).strip()
            print(
                f"WARNING: Slurm cannot be asked how the jobs are — {said} — the sweep waits for their results; a job "
                "that is killed is noticed when `squeue` works again",
                file=sys.stderr,
                flush=True,
            )
        self._complained = True


@contextmanager
def patient(folder: Path) -> Iterator[None]:
    """Have a submitted job that ends within the block without a result count as failed, and the others waited for.

    submitit raises at the first such job while others run, and has no hook for this: hence its methods are replaced.
    Jobs of the sweep that have ended are not submitted again.

    Args:
        folder: of the sweep.
    """
    from submitit import AutoExecutor
    from submitit.core import core
    from submitit.core.utils import FailedJobError, UncompletedJobError
    from submitit.slurm import slurm

    job: Any = core.Job
    slurm_job: Any = slurm.SlurmJob
    executor: Any = AutoExecutor
    results, watcher, submit = job.results, slurm_job.watcher, executor.map_array

    def or_failed(self: Any) -> list[Any]:
        try:
            found: list[Any] = results(self)
        except FailedJobError as error:
            words = f"its job {self.job_id} could not begin — {_last_line(str(error))}"
        except UncompletedJobError:
            words = f"its job {self.job_id} ended without a result ({self.state}) — usually it was cancelled, or had "
            words += "too little memory or time"
        else:
            return found
        number, overrides = _asked_for(self)
        fail_unless_ended(
            folder, Outcome(number, overrides, FAILED, f"{words} — see {_log(self)}; the same command tries again", 0)
        )
        return [JobReturn(_return_value=FAILED, status=JobStatus.COMPLETED)]

    def only_due(self: Any, function: Any, *columns: Any) -> list[Any]:
        rows, wanted = list(zip(*columns, strict=True)), due(folder)
        chosen = [row for row in rows if int(row[_NUMBER]) in wanted]
        sent = iter(submit(self, function, *zip(*chosen, strict=True)) if chosen else ())
        return [next(sent) if int(row[_NUMBER]) in wanted else _Ended() for row in rows]

    job.results, slurm_job.watcher, executor.map_array = or_failed, Queue(), only_due
    try:
        yield
    finally:
        job.results, slurm_job.watcher, executor.map_array = results, watcher, submit


class _Ended:
    """In the place of a submitted job, one that need not be."""

    def results(self) -> list[JobReturn]:
        """What its launcher asks for."""
        return [JobReturn(_return_value=OK, status=JobStatus.COMPLETED)]


def end_when_queued_again() -> None:
    """Have a job that submitit puts back into the queue end at once, as by a kill.

    By itself submitit raises SystemExit wherever the job is at that moment. A library that is being imported turns it
    into an ImportError, and a job that will go on would be counted as failed.
    """
    if "SUBMITIT_EXECUTOR" not in os.environ:
        return
    from submitit.core.job_environment import SignalHandler

    handler: Any = SignalHandler
    handler._exit = _end


def _end(_: object) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


def out_of_time(error: Exception) -> OpenbenchError | None:
    """Return what to tell the user if a job was told that its time is over, and may not go back into the queue.

    submitit raises this within the job, wherever it is at that moment.

    Args:
        error: as it came out of the job.
    """
    if type(error).__name__ != "UncompletedJobError":
        return None
    return OpenbenchError(
        "its time is over, and it was queued as often as it may — found hydra.launcher.timeout_min too small for "
        "hydra.launcher.max_num_timeout more tries — give one of them more; what was finished is kept, and the same "
        "command goes on from there"
    )


def _asked_for(job: Any) -> tuple[int, tuple[str, ...]]:
    """The number of a job in its sweep, and its overrides: the arguments that the launcher was submitted with."""
    overrides, _, number, *_ = job.submission().args
    return int(number), tuple(overrides)


def _log(job: Any) -> str:
    """The file with a job's last words."""
    paths = [path for path in (job.paths.stderr, job.paths.stdout) if path.exists() and path.stat().st_size]
    return f"'{(paths or [job.paths.stdout])[0]}'"


def _last_line(text: str) -> str:
    """The last line of the traceback that submitit quotes between two rules."""
    lines = [line for line in text.splitlines() if line.strip()]
    rules = [index for index, line in enumerate(lines) if line == _RULE]
    quoted = lines[rules[0] + 1 : rules[-1]] if len(rules) > 1 else lines
    return (quoted or ["it left no trace"])[-1].strip()
