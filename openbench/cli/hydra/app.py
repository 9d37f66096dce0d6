"""Running a command under Hydra: one job, or a sweep of them by one of Hydra's launchers."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from openbench import paths
from openbench.cli.hydra.outcome import FAILED_STATUS, MISSING, NOT_APPLICABLE, NOT_ENDED, PLAN, Outcome, Sweep
from openbench.cli.process import BAD_INPUT, FAILED, OK, message_of
from openbench.compose.composed import composed, nodes
from openbench.compose.config import VERSION_BASE, check_no_clash, compose_with_hydra, no_benchmark
from openbench.compose.errors import Typed, explained
from openbench.compose.sweep import deferred, jobs, label, paired, parse, sharded, swept_keys
from openbench.config.overrides import quoted
from openbench.errors import ConfigError, NotApplicableError, OpenbenchError
from openbench.progress import messages
from openbench.results.escape import console_lines

if TYPE_CHECKING:
    from openbench.engine.prepare import SharedObjects


@dataclass(frozen=True)
class Call:
    """One job: what is asked for, and whether it is one of many.

    Args:
        config: the scientific nodes, plain.
        runtime: the runtime node, plain.
        overrides: in one spelling, as records have them.
        sweep: whether the job is part of a sweep and should be brief.
        apart: what tells it from the sweep's other jobs, but for benchmark and method: `seed=1`.
        kept: what earlier jobs of the sweep in this process have opened and loaded.
    """

    config: Mapping[str, Any]
    runtime: Mapping[str, Any]
    overrides: Sequence[str] = ()
    sweep: bool = False
    apart: str = ""
    kept: "SharedObjects | None" = None


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
    act: Callable[[Call], Outcome]
    unused: tuple[str, ...] = ()
    divided: bool = False

    def __call__(self, argv: list[str]) -> int:
        """Carry out a command line.

        Args:
            argv: the arguments after the sub-command.

        Raises:
            OpenbenchError: anything about the arguments or configs; in a single job, whatever its action raises.
        """
        asked = self._parser().parse_intermixed_args(argv)
        typed = Typed(self.name, asked.overrides, asked.config_dir)
        if asked.config_dir is not None:
            check_no_clash(asked.config_dir)
        self._refuse_unused(typed)
        if asked.help or asked.hydra_help or asked.cfg or asked.info:
            flags = [word for word in argv if word not in asked.overrides]
            self._hydra(typed, [*asked.overrides, *flags])
            return OK
        if not any(word.startswith(("+", "benchmark=")) for word in asked.overrides):
            raise no_benchmark(self.name, asked.config_dir)
        if asked.multirun:
            return self._sweep(typed)
        made = composed(self.name, asked.overrides, asked.config_dir)
        return self._act(Call(made.config, made.runtime, made.overrides)).code

    def _act(self, call: Call) -> Outcome:
        """Do a job, which reports on stderr what it does unless the runtime forbids it."""
        with messages(call.runtime.get("progress", True)):
            return self.act(call)

    def _sweep(self, typed: Typed) -> int:
        """Carry out a sweep, whose jobs leave their outcomes in its folder, and print how they ended."""
        folder = _folder(typed.overrides)
        words = sharded(typed.overrides) if self.divided else list(typed.overrides)
        words = paired(words, typed.config_dir, folder / "pairs")
        whole = replace(typed, overrides=words)
        every = [*_swept_by_configs(whole), *words]
        swept = swept_keys(every, typed.config_dir)
        labels = [label(job, swept) for job in jobs(every, typed.config_dir)]
        if not labels:
            raise ConfigError(f"no job to run — the sweep in {' '.join(typed.overrides)} names nothing that exists")
        sweep = Sweep(folder, self.name, typed.overrides, swept, labels)
        sweep.write()
        given = [*deferred(words), f"hydra.sweep.dir={quoted(str(folder))}", "-m"]
        given += [] if typed.config_dir is None else ["--config-dir", str(typed.config_dir)]
        try:
            self._hydra(whole, given)
        except (OpenbenchError, OSError):
            raise
        except Exception as error:  # of the launcher, which has lost a process
            reason = str(error).partition("\n")[0]
            print(f"error: the launcher stopped: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)
        finally:
            _kept.cache_clear()
            if sweep.begun():
                _close(sweep)
            else:
                (folder / PLAN).unlink()  # `sweep status` lists what began
        return max(outcome.code for outcome in sweep.outcomes())

    def job(self, cfg: DictConfig) -> None:
        """Do one job of a sweep, here or wherever a launcher put it, report its errors and leave its outcome.

        A failed job must not end the sweep that it is part of, so nothing is raised but an interrupt.
        """
        known = HydraConfig.get()
        folder, number = Path(known.sweep.dir), int(known.job.num)
        sweep = Sweep.read(folder)
        # Unresolved: an override may itself hold an interpolation.
        overrides: list[str] = OmegaConf.to_container(known.overrides.task, resolve=False)  # type: ignore[assignment]
        begun = Outcome(FAILED, "", NOT_ENDED, {}, number, label(overrides, sweep.swept))
        begun.write(folder)
        title = sweep.title(number, begun.label)
        print(f"{title}{sweep.left()}", file=sys.stderr, flush=True)
        start = time.monotonic()
        apart = label(overrides, [key for key in sweep.swept if key not in ("benchmark", "method")])
        try:
            made = nodes(self.name, cfg, known.runtime.choices, overrides)
            ended = self._act(Call(made.config, made.runtime, made.overrides, True, apart, _kept(folder)))
        except BrokenPipeError:
            raise
        except Exception as error:
            _kept.cache_clear()  # whatever state it left its benchmark and network in
            ended = _outcome_of(error)
            line = console_lines(ended.message).partition("\n")[0]
            how = f"skipped: {NOT_APPLICABLE} —" if ended.status == NOT_APPLICABLE else "error:"
            print(f"{title}: {how} {line}", file=sys.stderr, flush=True)
        seconds = round(time.monotonic() - start, 3)
        replace(ended, job=number, label=begun.label, seconds=seconds).write(folder)

    def _hydra(self, typed: Typed, argv: list[str]) -> None:
        """Call `hydra.main`, whose errors then come out as ours."""
        main = hydra.main(version_base=VERSION_BASE, config_path=str(paths.config_dir()), config_name=self.name)
        # By default Hydra prints an error itself and exits; with this variable it lets the exception through.
        with _arguments(f"python -m openbench {self.name}", argv), explained(typed):
            os.environ["HYDRA_FULL_ERROR"] = "1"
            main(self.job)()

    def _refuse_unused(self, typed: Typed) -> None:
        for override in parse(typed.overrides):
            node = override.key_or_group.split(".")[0]
            if node in self.unused:
                raise ConfigError(
                    f"`{self.name}` does not depend on {node} — found {override.input_line} — leave it out, or give it "
                    "to `run`"
                )

    def _parser(self) -> argparse.ArgumentParser:
        """The flags of Hydra that make sense here."""
        parser = argparse.ArgumentParser(f"python -m openbench {self.name}", add_help=False, allow_abbrev=False)
        parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
        parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR")
        parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
        parser.add_argument("--info", "-i", nargs="?", const="all")
        for names in (("--multirun", "-m"), ("--help", "-h"), ("--hydra-help",), ("--resolve",)):
            parser.add_argument(*names, action="store_true")
        return parser


def _swept_by_configs(typed: Typed) -> list[str]:
    """The overrides of a sweep that a config file names, e.g. all groups of a benchmark."""
    shared = [o.input_line or "" for o in parse(deferred(typed.overrides)) if not o.is_sweep_override()]
    with explained(typed):
        sweeper = compose_with_hydra(typed.command, shared, typed.config_dir).hydra.sweeper
    return [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]


def _outcome_of(error: Exception) -> Outcome:
    """How a job of a sweep ended that raised an error."""
    if isinstance(error, NotApplicableError):  # a sweep over every method holds some that are made for other networks
        return Outcome(OK, str(error), NOT_APPLICABLE)
    message = message_of(error)
    if message is None:
        traceback.print_exception(error)
        return Outcome(FAILED, f"{type(error).__name__}: {error}", FAILED_STATUS)
    return Outcome(BAD_INPUT, message, FAILED_STATUS)


@lru_cache(maxsize=1)
def _kept(sweep: Path) -> "SharedObjects":
    """What the jobs of a sweep leave to the next one in this process: the benchmark opened, the network loaded."""
    from openbench.engine.prepare import SharedObjects

    return SharedObjects()


def _close(sweep: Sweep) -> None:
    """Print what a sweep made, and how its jobs ended."""
    from openbench.results.tables.render import to_console

    try:
        if any(outcome.status not in MISSING for outcome in sweep.outcomes()):
            print(to_console(sweep.table()), end="", flush=True)
    finally:  # stdout may be full
        print(sweep.summary(), file=sys.stderr, flush=True)


def _folder(overrides: Sequence[str]) -> Path:
    """The folder of a sweep: that of `hydra.sweep.dir`, else a new one in the cache, which launchers share.

    Raises:
        ConfigError: a name that Hydra would not take as it is.
    """
    typed = {override.key_or_group: str(override.value()) for override in parse(overrides)}
    cache = paths.cache_dir()
    if typed.get("runtime.cache", "None") != "None":
        cache = paths.writable(Path(typed["runtime.cache"]).expanduser(), "runtime.cache")
    folder = cache / "sweeps" / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S-%f}-{os.getpid()}"
    folder = Path(typed.get("hydra.sweep.dir", folder)).absolute()
    if "${" in str(folder):
        raise ConfigError(f"folder '{folder}' of the sweep — found a reference, `${{` — write the name itself")
    return folder


@contextmanager
def _arguments(program: str, argv: list[str]) -> Iterator[None]:
    """Within the block, have these be the arguments of the program: Hydra reads no others."""
    before = sys.argv
    sys.argv = [program, *argv]
    try:
        yield
    finally:
        sys.argv = before
