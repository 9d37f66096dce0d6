"""One job of a command, as its own process sees it: alone, or as a part of a sweep that others carry out too."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from openbench.cli.hydra.outcome import (
    ALIVE,
    DONE,
    NAMES,
    NOT_APPLICABLE,
    OUTCOME,
    RUNNING,
    UNFINISHED,
    WAITING,
    Outcome,
    Plan,
    read_outcomes,
)
from openbench.cli.process import OK
from openbench.compose.interpolations import limited
from openbench.compose.sweep import label
from openbench.errors import ConfigError
from openbench.results.escape import console_lines
from openbench.storage.locks import leaving

_GLANCE = 1.0  # seconds; who looks whether a job lives holds its lock for less


@dataclass(frozen=True)
class Done:
    """How the action of a job ended.

    Args:
        code: its exit code; a check that finds problems ends with one that is not 0.
        message: one line on what was done, or the error.
        status: what became of it, one of Outcome's.
        names: names that the config does not tell: those of the record.
        auroc: near and far AUROC, if there are any.
        record: the file of its record, if it leaves one.
    """

    code: int
    message: str
    status: str = DONE
    names: Mapping[str, str] = field(default_factory=dict)
    auroc: Mapping[str, float] = field(default_factory=dict)
    record: str = ""


@dataclass(frozen=True)
class Job:
    """One job.

    Args:
        outcome: what is known of it before it begins.
        folder: its own.
        sweep: the folder of its sweep; None if it is alone.
        plan: the plan of its sweep; None if it is alone.
    """

    outcome: Outcome
    folder: Path
    sweep: Path | None
    plan: Plan | None

    @classmethod
    def of(cls, cfg: DictConfig, hydra_cfg: Any) -> "Job":
        """The job that Hydra composed.

        Args:
            cfg: its config.
            hydra_cfg: Hydra's own.
        """
        sweep = Path(hydra_cfg.sweep.dir) if hydra_cfg.mode == RunMode.MULTIRUN else None
        plan = None if sweep is None else Plan.read(sweep)
        number = 0 if OmegaConf.is_missing(hydra_cfg.job, "num") else int(hydra_cfg.job.num)
        # Unresolved: an override may itself hold an interpolation.
        overrides: list[str] = OmegaConf.to_container(hydra_cfg.overrides.task, resolve=False)  # type: ignore[assignment]
        keys = dict.fromkeys((*NAMES, *(plan.swept if plan else ())))
        names = {key: _name(cfg, hydra_cfg.runtime.choices, key) for key in keys}
        outcome = Outcome(number, tuple(overrides), OK, "", 0.0, RUNNING, names)
        return cls(outcome, Path(hydra_cfg.runtime.output_dir), sweep, plan)

    @property
    def title(self) -> str:
        """What it is called in every line of a sweep: `job 3 of 12 (method=knn seed=1)`."""
        return "" if self.plan is None else self.plan.title(self.outcome)

    @property
    def apart(self) -> str:
        """What tells it from the sweep's other jobs, but for benchmark and method, which every line names."""
        others = [key for key in (self.plan.swept if self.plan else ()) if key not in ("benchmark", "method")]
        return label(self.outcome.overrides, others)

    def due(self) -> bool:
        """Whether it is to be carried out: it has not ended before, and need not wait for the others."""
        return self.plan is None or not (self.outcome.job in self.plan.later or self._ended())

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Say that it begins, and leave a file that says so if it is killed; a lock says that it lives."""
        if self.plan is None or self.sweep is None:
            yield
            return
        self.outcome.write(self.folder)
        print(f"{self.title}{self.plan.left(read_outcomes(self.sweep))}", file=sys.stderr, flush=True)
        lock = FileLock(self.folder / ALIVE)
        with suppress(Timeout):  # a copy of it that another node has not noticed to be lost
            lock.acquire(timeout=_GLANCE)
        try:
            yield
        finally:
            lock.release()

    def end(self, done: Done, seconds: float) -> None:
        """Write the outcome of a job of a sweep; a job that is alone tells by its exit code."""
        if self.plan is None:
            return
        names = {**self.outcome.names, **{k: v for k, v in done.names.items() if k in self.outcome.names}}
        ended = replace(self.outcome, code=done.code, message=done.message, seconds=round(seconds, 3))
        ended = replace(ended, status=done.status, names=names, auroc=dict(done.auroc), record=done.record)
        ended.write(self.folder)

    def complain(self, done: Done) -> None:
        """Report an error: in full, or for a sweep its first line, since the sweep's last lines tell the rest once."""
        message = console_lines(done.message)
        first = message.partition("\n")[0]
        if self.plan is None:
            line = f"error: {message}"
        elif done.status == WAITING:
            line = f"{self.title}: {first} — it goes on when others have ended"
        elif done.status == NOT_APPLICABLE:
            line = f"{self.title}: skipped: {NOT_APPLICABLE} — {first}"
        else:
            line = f"{self.title}: error: {first}"
        print(line, file=sys.stderr, flush=True)

    @contextmanager
    def in_its_place(self) -> Iterator[None]:
        """Within the block, have it leave its place in a sweep to others rather than wait for what they make."""
        with leaving() if self.plan is not None and not self.plan.patient else nullcontext():
            yield

    def _ended(self) -> bool:
        found = Outcome.read(self.folder / OUTCOME)
        return found is not None and found.job == self.outcome.job and found.status not in UNFINISHED


def _name(cfg: DictConfig, choices: Mapping[str, Any], key: str) -> str:
    """What was chosen in a group, or the value of a key; a benchmark names itself."""
    if key in choices and key != "benchmark":
        return str(choices[key])
    try:
        with limited(key.partition(".")[0]):
            value = OmegaConf.select(cfg, "benchmark.name" if key == "benchmark" else key)
    except (OmegaConfBaseException, ConfigError):
        return ""
    return "" if value is None else str(value)
