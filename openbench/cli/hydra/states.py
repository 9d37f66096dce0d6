"""How far a sweep is: what became of each of its jobs, from the outcomes that they left and from records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from openbench.cli.hydra.outcome import (
    ALIVE,
    FAILED_STATUS,
    NOT_APPLICABLE,
    OUTCOME,
    PLAN,
    RUNNING,
    WAITING,
    Outcome,
    Plan,
    numbers,
    outcome_files,
)
from openbench.compose.sweep import combinations, label, swept_keys
from openbench.errors import ConfigError
from openbench.results.escape import console_lines
from openbench.results.tables.render import Column, Table, to_console
from openbench.storage.locks import held

DONE, INTERRUPTED, QUEUED, TO_DO = "done", "interrupted", "queued", "to do"
# In the order in which they are counted; the first two are as they should be when a sweep has ended.
STATES = (DONE, NOT_APPLICABLE, RUNNING, QUEUED, FAILED_STATUS, INTERRUPTED, TO_DO)
FINISHED = STATES[:2]


@dataclass(frozen=True)
class State:
    """What is known of one job.

    Args:
        job: its number in the sweep, from 0.
        name: what tells it from the others: `method=knn seed=1`.
        state: one of STATES.
        why: the record that it made, the error, or since when it runs.
    """

    job: int
    name: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Kept:
    """The folder of a sweep.

    Args:
        folder: in the cache.
        plan: what its jobs know of the whole.
    """

    folder: Path
    plan: Plan

    @property
    def alive(self) -> bool:
        """Whether the process that hands out its jobs lives."""
        return held(self.folder / ALIVE)

    def states(self) -> list[State]:
        """Return what became of its jobs."""
        files = {outcome.job: (file.parent, outcome) for file, outcome in outcome_files(self.folder).items()}
        alive, found = self.alive, list[State]()
        for job in range(self.plan.jobs):
            if job in files:
                folder, outcome = files[job]
                found.append(state_of(outcome, folder, label(outcome.overrides, self.plan.swept), alive))
            else:
                name = self.plan.names[job] if job < len(self.plan.names) else ""
                found.append(State(job, name, QUEUED if alive else TO_DO))
        return found


def state_of(outcome: Outcome, folder: Path, name: str, alive: bool) -> State:
    """Return what became of a job that has begun.

    Args:
        outcome: what it left.
        folder: its own.
        name: what tells it from the others.
        alive: whether its sweep lives, which may give it out again.
    """
    if outcome.status == RUNNING:
        if held(folder / ALIVE):
            begun = datetime.fromtimestamp((folder / OUTCOME).stat().st_mtime, UTC)
            return State(outcome.job, name, RUNNING, f"since {begun:%Y-%m-%d %H:%M} UTC")
        why = "its process ended without a word; it may be queued again" if alive else "its process was killed"
        return State(outcome.job, name, INTERRUPTED, why)
    if outcome.status == WAITING:
        return State(outcome.job, name, QUEUED if alive else TO_DO, outcome.message)
    if outcome.record and not Path(outcome.record).is_file():
        return State(outcome.job, name, TO_DO, f"its record is not there any more: '{outcome.record}'")
    status = outcome.status if outcome.status in (FAILED_STATUS, NOT_APPLICABLE) else DONE
    return State(outcome.job, name, status, outcome.message)


def kept_sweeps(sweeps: Path) -> list[Kept]:
    """Return the sweeps whose folders lie below another, the latest first; unreadable ones are left out."""
    found = []
    for folder in sorted(sweeps.glob("*"), reverse=True) if sweeps.is_dir() else ():
        try:
            found.append(Kept(folder, Plan.read(folder)))
        except ConfigError:
            continue
    return found


def kept_sweep(name: str, sweeps: Path) -> Kept:
    """Return the sweep of a folder, or of a name in the cache.

    Raises:
        ConfigError: there is none.
    """
    for folder in (Path(name), sweeps / name):
        if (folder / PLAN).is_file():
            return Kept(folder, Plan.read(folder))
    known = [kept.folder.name for kept in kept_sweeps(sweeps)][:5]
    raise ConfigError(
        f"'{name}' is not the folder of a sweep — found no '{PLAN}' in it — allowed: a folder, a name below '{sweeps}' "
        f"({', '.join(known) or 'there are none'}), or the sweep as it was typed: run -m +benchmark=…"
    )


def states_of_words(
    words: Sequence[str],
    kept: Iterable[Kept],
    record: Callable[[Sequence[str]], str],
    config_dir: Path | None = None,
) -> list[State]:
    """Return what became of the jobs that a command line names, whatever sweep or single run made them.

    Args:
        words: the overrides.
        kept: sweeps, the latest first: of the outcomes of a job the latest counts.
        record: names the record of a job's overrides; empty if there is none.
        config_dir: a folder of the user's group files.
    """
    known = _latest(kept)
    swept, found = swept_keys(words, config_dir), list[State]()
    for number, one in enumerate(combinations(words, config_dir)):
        name = label(one.plain, swept)
        folder, outcome, alive = known.get(_key(one.typed), (Path(), None, False))
        state = None if outcome is None else state_of(outcome, folder, name, alive)
        if made := record(one.plain):
            state = State(number, name, DONE, made)
        found.append(State(number, name, state.state, state.why) if state else State(number, name, TO_DO))
    return found


def _latest(kept: Iterable[Kept]) -> dict[frozenset[str], tuple[Path, Outcome, bool]]:
    """The latest outcome of each job, with its folder and whether its sweep lives."""
    found: dict[frozenset[str], tuple[Path, Outcome, bool]] = {}
    for one in kept:
        alive = one.alive
        for file, outcome in outcome_files(one.folder).items():
            found.setdefault(_key(outcome.overrides), (file.parent, outcome, alive))
    return found


def _key(overrides: Iterable[str]) -> frozenset[str]:
    """What a job computes: its overrides without those that say how."""
    return frozenset(word for word in overrides if not word.lstrip("+~").startswith(("runtime", "hydra")))


def overview(kept: Sequence[Kept]) -> str:
    """Return a table of sweeps, with how many of their jobs are in each state."""
    rows = []
    for one in kept:
        counts = counted(one.states())
        command = " ".join((one.plan.command, "-m", *one.plan.words)) if one.plan.command else "–"
        rows.append((one.folder.name, "running" if one.alive else "ended", counts, command))
    titles = ("sweep", "it is", "jobs", "command")
    return to_console(Table("sweeps, the latest first", tuple(map(Column, titles)), tuple(rows)))


def details(states: Sequence[State], title: str) -> str:
    """Return a table of jobs, then each reason for a state once, then how many are in each.

    Args:
        states: of the jobs.
        title: of the table.
    """
    rows = tuple((str(state.job + 1), state.name or None, state.state) for state in states)
    lines = [to_console(Table(title, tuple(map(Column, ("job", "what", "state"))), rows)).rstrip("\n")]
    told: dict[tuple[str, str], list[int]] = {}
    for state in states:
        if state.why and state.state != DONE:
            told.setdefault((state.state, state.why), []).append(state.job + 1)
    lines += [console_lines(f"{state}, {numbers(jobs)}: {why}") for (state, why), jobs in told.items()]
    return "\n".join([*lines, f"{len(states)} jobs: {counted(states)}"]) + "\n"


def counted(states: Iterable[State]) -> str:
    """Return how many jobs are in each state: `9 done, 1 running, 2 failed`."""
    counts = dict.fromkeys(STATES, 0)
    for state in states:
        counts[state.state] += 1
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"
