"""What becomes of the jobs of a sweep whose process was killed, e.g. by a system that ran out of memory."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from openbench.cli.hydra.outcome import FAILED_STATUS, RUNNING, Outcome, Plan, due, outcome_files
from openbench.cli.process import FAILED
from openbench.errors import OpenbenchError

# Overrides that make the joblib launcher hand out one job at a time, to a process of its own.
ONE_AT_A_TIME = ("hydra.launcher.n_jobs=2", "hydra.launcher.pre_dispatch=1", "hydra.launcher.batch_size=1")


def after_a_kill(folder: Path, plan: Plan, error: Exception, asked: frozenset[int]) -> tuple[int, ...]:
    """Return the numbers of the jobs that are to run again, one at a time, after a process of the launcher ended.

    All its processes end with it, and the launcher does not say whose job was the cause. Of jobs that ran together,
    each may find enough memory when it runs alone. One that ran alone has failed. Between two jobs none has.

    Args:
        folder: of the sweep.
        plan: of the sweep.
        error: what the launcher raised; it names the exit codes.
        asked: numbers of the jobs that the launcher was given.

    Raises:
        OpenbenchError: no job was running and none has ended, so that another try would end the same way.
    """
    codes = re.search(r"\{([^{},]+)[^{}]*\}", str(error))
    how = f"its process was ended by {codes.group(1)}" if codes else "its process ended without a word"
    running = {file: outcome for file, outcome in outcome_files(folder).items() if outcome.status == RUNNING}
    if not running and asked - due(folder):
        print(
            f"between two jobs {how}, and the launcher ended all others with it — the rest goes on",
            file=sys.stderr,
            flush=True,
        )
        return ()
    if not running:
        raise OpenbenchError(
            f"a process of the launcher ended before a job began ({how}) — usually too little memory — take fewer "
            "processes, hydra.launcher.n_jobs=1, and give the same command again"
        )
    if len(running) == 1:
        [(file, outcome)] = running.items()
        message = f"{how} while no other job ran — usually too little memory; the same command tries it again"
        fail(outcome, file.parent, plan, message)
        return ()
    for file in running:
        file.unlink()
    titles = " or ".join(plan.title(outcome) for outcome in sorted(running.values(), key=lambda o: o.job))
    print(
        f"{titles}: {how}, and the launcher ended the other processes — usually too little memory — the rest goes on; "
        "these jobs run again at the end, one at a time",
        file=sys.stderr,
        flush=True,
    )
    return tuple(sorted(outcome.job for outcome in running.values()))


def fail(outcome: Outcome, folder: Path, plan: Plan, message: str) -> None:
    """Count a job as failed that could not do so itself, and say so.

    Args:
        outcome: what is known of the job.
        folder: its own.
        plan: of the sweep.
        message: what happened to it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    replace(outcome, code=FAILED, message=message, status=FAILED_STATUS).write(folder)
    print(f"{plan.title(outcome)}: error: {message}", file=sys.stderr, flush=True)


def fail_unless_ended(folder: Path, failed: Outcome) -> None:
    """Leave the outcome of a job that ended without a word, unless it had ended well before.

    Args:
        folder: of the sweep.
        failed: what is known of the job, with what happened to it.
    """
    before = {outcome.job: (file.parent, outcome) for file, outcome in outcome_files(folder).items()}
    place, known = before.get(failed.job, (folder / str(failed.job), failed))
    if failed.job not in before or known.status == RUNNING:
        fail(known, place, Plan.read(folder), failed.message)
