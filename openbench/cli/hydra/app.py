"""Running a command under Hydra: one job or a sweep of them, with exit codes and without Hydra's litter."""

import argparse
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any

import hydra
from filelock import FileLock
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from openbench import paths
from openbench.cli.hydra.held import forget
from openbench.cli.hydra.job import Done, Job
from openbench.cli.hydra.killed import ONE_AT_A_TIME, after_a_kill
from openbench.cli.hydra.launchers.mended import mended
from openbench.cli.hydra.launchers.submitit_jobs import end_when_queued_again, out_of_time
from openbench.cli.hydra.outcome import (
    ALIVE,
    FAILED_STATUS,
    NOT_APPLICABLE,
    UNFINISHED,
    WAITING,
    Outcome,
    Plan,
    due,
    read_outcomes,
    summary,
    table,
)
from openbench.cli.process import BAD_INPUT, FAILED, OK, code_of, message_of
from openbench.compose import loader
from openbench.compose.config import VERSION_BASE, check_no_clash, no_benchmark, runtime, scientific
from openbench.compose.errors import Typed, explained
from openbench.compose.flags import check_flags, check_overrides
from openbench.compose.group import composing_groups
from openbench.compose.renamed import refuse_moved
from openbench.compose.sweep import deferred, jobs, label, paired, parse, sharded, swept_keys
from openbench.compose.unread import refuse_unread
from openbench.config.overrides import quoted
from openbench.errors import BusyError, ConfigError, NotApplicableError
from openbench.storage.locks import held

Config = Mapping[str, Any]
# joblib's clean-up process speaks of what it cleans up after an interrupt; processes read this when they start.
QUIET = "ignore:resource_tracker:UserWarning"
LOGS = ".submitit"  # of a launcher whose jobs may outlive the process that submitted them


@dataclass(frozen=True)
class Call:
    """One job: what is asked for, and whether it is one of many.

    Args:
        config: the scientific nodes, plain.
        runtime: the runtime node, plain.
        sweep: whether the job is part of a sweep and should be brief.
        apart: what tells it from the sweep's other jobs, but for benchmark and method: `seed=1`.
        folder: of the sweep.
    """

    config: Config
    runtime: Config
    sweep: bool
    apart: str = ""
    folder: Path | None = None

    def say(self, text: str) -> None:
        """Report progress on stderr, unless the runtime says otherwise, and warnings: stdout holds results only."""
        if self.runtime.get("progress", True) or text.startswith("WARNING"):
            print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class HydraCommand:
    """A sub-command that Hydra composes: called with its arguments, it returns the worst exit code of its jobs.

    Args:
        name: of the sub-command and its primary config.
        act: what a job does; a function at the top level of a module, so that launchers can send it to other processes.
        unused: config nodes that this command does not read; setting one is refused rather than ignored.
        divided: whether a sweep with `runtime.shards` has a job for each shard.
    """

    name: str
    act: Callable[[Call], Done]
    unused: tuple[str, ...] = ()
    divided: bool = False

    def __call__(self, argv: list[str]) -> int:
        """Hand a command line to Hydra.

        Args:
            argv: the arguments after the sub-command.

        Raises:
            ConfigError: anything about the arguments or configs that Hydra refuses.
        """
        typed, asked = self._typed(argv)
        flags = _flags(argv, typed.overrides)
        check_flags(asked)
        check_overrides(parse(typed.overrides))
        if typed.config_dir is not None:
            check_no_clash(typed.config_dir)
        _refuse_unused(typed, self.unused)
        refuse_moved(parse(typed.overrides))
        if asked.help or asked.hydra_help or asked.cfg or asked.info:
            _hydra(typed, [*typed.overrides, *flags], self.carry_out)
            return OK
        if not any(o.startswith(("+", "benchmark=")) for o in typed.overrides):
            # Nothing that could bring a benchmark along: say so once, not once per job of a sweep.
            raise no_benchmark(self.name, typed.config_dir)
        if asked.multirun:
            if self.divided:
                typed = replace(typed, overrides=sharded(typed.overrides))
            return _run_sweep(typed, flags, self.carry_out)
        codes: list[int] = []

        @wraps(self.carry_out)
        def kept(cfg: DictConfig) -> int:
            codes.append(self.carry_out(cfg))
            return codes[-1]

        # Hydra makes its folder, and writes nothing to it; the working directory is there.
        _hydra(typed, ["hydra.run.dir=.", *typed.overrides, *flags], kept)
        return codes[0]

    def complete(self, argv: list[str]) -> None:
        """Have Hydra print how the last word of the variable COMP_LINE may go on; nothing is carried out.

        Args:
            argv: Hydra's flags, of which one asks for completion.
        """
        _hydra(self._typed(argv)[0], argv, self.carry_out)

    def carry_out(self, cfg: DictConfig) -> int:
        """Do one job, here or wherever a launcher put it: report its errors, leave its outcome, return its exit code.

        A failed job must not end the sweep that it is part of, so nothing is raised but an interrupt.
        """
        hydra_cfg = HydraConfig.get()
        job = Job.of(cfg, hydra_cfg)
        if not job.due():
            return OK
        end_when_queued_again()
        with job.begun():
            start = time.monotonic()
            try:
                config = scientific(cfg, hydra_cfg.runtime.choices, self.name)
                refuse_unread(self.name, job.outcome.overrides, config)
                with job.in_its_place():
                    done = self.act(Call(config, runtime(cfg), job.plan is not None, job.apart, job.sweep))
            except NotApplicableError as error:
                # A sweep over every method should not fail because some are made for other networks.
                done = Done(BAD_INPUT if job.plan is None else OK, str(error), NOT_APPLICABLE)
                job.complain(done)
            except BusyError as error:
                done = Done(OK, str(error), WAITING)
                job.complain(done)
            except BrokenPipeError:
                raise
            except Exception as error:
                forget()  # whatever state it left its benchmark and network in
                told = message_of(error) or out_of_time(error)
                done = Done(
                    BAD_INPUT if told else FAILED, str(told or f"{type(error).__name__}: {error}"), FAILED_STATUS
                )
                if told is None:
                    traceback.print_exc()
                else:
                    job.complain(done)
            job.end(done, time.monotonic() - start)
            return done.code

    def _typed(self, argv: list[str]) -> tuple[Typed, argparse.Namespace]:
        """What the user typed, and as Hydra's parser reads it."""
        with _argv(f"python -m openbench {self.name}", argv):
            asked = get_args_parser().parse_intermixed_args()
        return Typed(self.name, list(asked.overrides), Path(asked.config_dir) if asked.config_dir else None), asked


def _refuse_unused(typed: Typed, unused: tuple[str, ...]) -> None:
    for override in parse(typed.overrides):
        node = override.key_or_group.split(".")[0]
        if node in unused:
            raise ConfigError(
                f"`{typed.command}` does not depend on {node} — found {override.input_line} — leave it out, or give it "
                "to `run`"
            )


_OLD = 86_400.0  # seconds


def _delete_dead(parent: Path) -> None:
    """Delete the folders of sweeps that were killed more than a day ago; a launcher's logs stay."""
    for alive in parent.glob(f"*/{ALIVE}"):
        old = time.time() - alive.stat().st_mtime > _OLD
        if old and not held(alive) and not (alive.parent / LOGS).exists():
            shutil.rmtree(alive.parent, ignore_errors=True)


def _run_sweep(typed: Typed, flags: list[str], job: Callable[[DictConfig], int]) -> int:
    folder = _scratch(typed)
    _delete_dead(folder.parent)
    folder.mkdir(parents=True, exist_ok=True)
    warnings = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), QUIET)))
    with FileLock(folder / ALIVE), _environment("PYTHONWARNINGS", warnings):
        try:
            _sweep(typed, [f"hydra.sweep.dir={quoted(str(folder))}", *flags], job, folder)
        except KeyboardInterrupt as stop:
            if not read_outcomes(folder):
                raise
            return code_of(stop)  # how far it came is said below
        finally:
            forget()
            outcomes = read_outcomes(folder)
            if outcomes:
                _close(outcomes, folder)
            elif not (folder / LOGS).exists():
                _remove(folder)  # a sweep that never began leaves nothing worth keeping; a launcher's logs stay
    if not outcomes:
        raise ConfigError(f"no job to run — the sweep in {' '.join(typed.overrides)} names nothing that exists")
    return max(outcome.code for outcome in outcomes)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _sweep(typed: Typed, rest: list[str], job: Callable[[DictConfig], int], folder: Path) -> None:
    """Carry out a sweep, whose jobs leave their outcomes in its folder, until each has one.

    Args:
        typed: what the user typed.
        rest: further arguments for Hydra.
        job: carries out one composed config.
        folder: of the sweep.
    """
    words = tuple(typed.overrides)
    typed = replace(typed, overrides=paired(typed.overrides, typed.config_dir, folder / "pairs"))
    swept = tuple(swept_keys(typed.overrides, typed.config_dir))
    every = jobs(typed.overrides, typed.config_dir)
    plan = Plan(len(every), swept, (), typed.command, words, tuple(label(job, swept) for job in every))
    given, later, one_at_a_time = deferred(typed.overrides), tuple[int, ...](), tuple[str, ...]()
    left, patient = frozenset(range(len(every))), False
    while True:
        replace(plan, later=later, patient=patient).write(folder)
        asked = due(folder)
        try:
            # Jobs that have ended before, or that wait, return at once.
            with mended(), composing_groups():
                _hydra(typed, [*given, *one_at_a_time, *rest], job)
        except BrokenProcessPool as error:
            later = (*later, *after_a_kill(folder, plan, error, asked))
            continue
        if waiting := _waiting(folder):
            # Those that wait for a job of somebody else would leave again and again.
            left, patient = due(folder), due(folder) == left
            how = "wait for what other jobs make" if patient else "go on now that others have ended"
            _to_stderr(f"{waiting} of {len(every)} jobs {how}")
            continue
        if not later:
            return
        later, one_at_a_time = (), ONE_AT_A_TIME


def _waiting(folder: Path) -> int:
    """How many jobs left their place because they would have waited."""
    return sum(outcome.status == WAITING for outcome in read_outcomes(folder))


def _close(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Print what a sweep made, and how its jobs ended."""
    from openbench.results.tables.render import to_console

    plan = Plan.read(folder)
    try:
        if any(outcome.status not in UNFINISHED for outcome in outcomes):
            print(to_console(table(outcomes, plan.swept)), end="", flush=True)
    finally:  # stdout may be full
        print(summary(outcomes, plan, folder), file=sys.stderr, flush=True)


def _hydra(typed: Typed, argv: list[str], job: Callable[[DictConfig], int]) -> None:
    """Call `hydra.main`, whose errors then come out as ours."""
    loader.install()
    main = hydra.main(version_base=VERSION_BASE, config_path=str(paths.config_dir()), config_name=typed.command)
    # By default Hydra prints an error itself and exits; with this variable it lets the exception through.
    with _argv(f"python -m openbench {typed.command}", argv), _environment("HYDRA_FULL_ERROR", "1"), explained(typed):
        try:
            main(job)()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise


def _scratch(typed: Typed) -> Path:
    """Make a new folder for Hydra's own files, in the cache: launchers share it, and the working directory stays clean.

    Raises:
        ConfigError: a name that Hydra would not take as it is.
    """
    cache = paths.cache_dir()
    for override in parse(typed.overrides):
        if override.key_or_group == "runtime.cache" and isinstance(override.value(), str):
            cache = paths.writable(Path(str(override.value())).expanduser(), "runtime.cache")
    if "${" in str(cache):
        raise ConfigError(f"cache '{cache}' — Hydra reads '${{' in a sweep's folder as a reference — choose another")
    name, again = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{os.getpid()}", 1
    while True:  # sweeps that begin in the same second must not find each other's outcomes
        folder = cache.absolute() / "sweeps" / (name if again == 1 else f"{name}-{again}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():
                raise
            again += 1


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()


def _flags(argv: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The arguments that are not overrides. Hydra's own parser wants these together; people type `-m` anywhere."""
    rest = list(argv)
    for override in overrides:
        rest.remove(override)
    return rest


@contextmanager
def _argv(program: str, argv: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [program, *argv]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
