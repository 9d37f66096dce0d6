"""The jobs that Hydra composes: `run`, `train`, `extract` and `check`, alone or as a sweep by Hydra's launchers.

The outcomes of a sweep's jobs are in its folder, which `sweep status` describes.
"""

import json
import logging
import os
import sys
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from openbench import paths
from openbench.cli import options
from openbench.cli.output import group_auroc, headline, note, print_tables
from openbench.cli.process import BAD_INPUT, FAILED, OK, message_of
from openbench.compose import config as configs
from openbench.config.folders import config_folders
from openbench.config.overrides import command_line, quoted
from openbench.engine.provenance import WARNINGS
from openbench.errors import ConfigError, NotApplicableError, OpenbenchError
from openbench.progress import duration, messages
from openbench.results.escape import console_lines
from openbench.results.records.store import RecordStore
from openbench.results.tables.render import Column, Table, to_console
from openbench.results.tables.views import run_tables
from openbench.storage.files import write_whole

if TYPE_CHECKING:
    from openbench.engine.prepare import SharedObjects

logger = logging.getLogger(__name__)
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


@dataclass(frozen=True)
class Call(configs.Composed):
    """What a job is to do: its config, and as part of what.

    Args:
        label: how it differs from the sweep's other jobs, besides benchmark and method: `seed=1`.
        shared: the benchmark and network that earlier jobs of its sweep in this process have loaded; None without one.
    """

    label: str = ""
    shared: "SharedObjects | None" = None


@dataclass(frozen=True)
class HydraCommand:
    """A sub-command that Hydra composes.

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

    def __call__(self, argv: Sequence[str]) -> int:
        """Run a command line, without the name of the sub-command, and return the worst exit code of its jobs."""
        return self.command().main(list(argv), f"python -m openbench {self.name}", standalone_mode=False)

    def command(self) -> click.Command:
        """Return the command, with the flags of Hydra that make sense here."""

        @click.command(self.name, cls=options.Command, add_help_option=False)
        @click.argument("overrides", nargs=-1, metavar="KEY=VALUE…", type=click.UNPROCESSED)
        @click.option("-cd", "--config-dir", type=options.FILE)
        @click.option("-m", "--multirun", is_flag=True)
        @click.option("-c", "--cfg", type=click.Choice(["job", "hydra", "all"]))
        @click.option("-i", "--info", is_flag=False, flag_value="all")
        @click.option("-h", "--help", is_flag=True)
        @click.option("--hydra-help", is_flag=True)
        @click.option("--resolve", is_flag=True)
        def run(args: Namespace) -> int:
            self._refuse_unused(args)
            if args.cfg or args.info or args.help or args.hydra_help:
                words = [*args.overrides, *["-m"] * args.multirun]
                for name in ("cfg", "info", "help", "hydra_help", "resolve"):
                    value = getattr(args, name)
                    words += [f"--{name.replace('_', '-')}", *[value] * (value is not True)] if value else []
                self._hydra(args, words)
                return OK
            if not any(word.startswith(("+", "benchmark=")) for word in args.overrides):
                raise configs.no_benchmark(self.name, args.config_dir)
            if args.multirun:
                return self._sweep(args)
            job = configs.composed(self.name, args.overrides, args.config_dir)
            return self._act(Call(job.config, job.runtime, job.overrides)).code

        return run

    def _act(self, call: Call) -> Outcome:
        """Do a job, which reports its progress on stderr unless the runtime forbids it."""
        with messages(call.runtime.get("progress", True)):
            logger.debug(f"as typed in full: {command_line(self.name, call.overrides)}")
            return self.act(call)

    def _sweep(self, args: Namespace) -> int:
        """Run a sweep, whose jobs leave their outcomes in its folder, and print how they ended."""
        config_dir = args.config_dir
        words = configs.sharded(args.overrides) if self.divided else list(args.overrides)
        words, streams = configs.without_streams(words, config_dir)
        if streams:
            logger.info(f"skipped: {', '.join(streams)}, which score a stream of images: name them to run them")
        words = list(map(configs.deferred, words))
        # With words that cannot be parsed, which this refuses.
        common = [word for word in words if not any(one.is_sweep_override() for one in configs.parse([word]))]
        cfg = configs.compose(self.name, common, config_dir)
        if cfg.hydra.runtime.choices["hydra/sweeper"] != "basic":
            raise ConfigError("a sweep runs every combination — leave out hydra/sweeper; `tune` searches settings")
        every = [*(f"{key}={value}" for key, value in (cfg.hydra.sweeper.params or {}).items()), *words]
        swept = configs.swept_keys(every, config_dir)
        jobs = configs.jobs(every, config_dir)
        labels = [configs.label(job, swept) for job in jobs]
        if not labels:
            raise ConfigError(f"no job to run — the sweep in {' '.join(args.overrides)} names nothing that exists")
        sweep = Sweep(_folder(cfg, common), self.name, args.overrides, swept, labels)
        sweep.write()
        try:
            # A sweep over keys of Hydra is left to it, which refuses it.
            own = not any(key.startswith(configs.HYDRA) for key in swept)
            if own and str(OmegaConf.select(cfg, "hydra.launcher._target_")).endswith(".BasicLauncher"):
                # All of them before the first begins, which Hydra does as well, and then does again.
                composed = [configs.compose(self.name, job, config_dir, words) for job in jobs]
                for number, (job, one) in enumerate(zip(jobs, composed, strict=True)):
                    self._do(sweep, number, one, one.hydra.runtime.choices, job)
            else:
                argv = [*words, f"hydra.sweep.dir={quoted(str(sweep.folder))}", "-m"]
                self._hydra(Namespace(overrides=words, config_dir=config_dir), argv)
        except (OpenbenchError, OSError):
            raise
        except Exception as error:  # of the launcher, which has lost a process
            reason = str(error).partition("\n")[0]
            print(f"error: the launcher stopped: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)
        finally:
            _shared.cache_clear()
            if sweep.begun():
                _close(sweep)
            else:
                (sweep.folder / PLAN).unlink()  # `sweep status` lists sweeps that have begun
        return max(outcome.code for outcome in sweep.outcomes())

    def job(self, cfg: DictConfig) -> None:
        """Do one job of a sweep in a process that a launcher began."""
        known = HydraConfig.get()
        # Unresolved: an override may itself hold an interpolation.
        overrides: list[str] = OmegaConf.to_container(known.overrides.task, resolve=False)  # type: ignore[assignment]
        self._do(Sweep.read(Path(known.sweep.dir)), int(known.job.num), cfg, known.runtime.choices, overrides)

    def _do(self, sweep: Sweep, number: int, cfg: DictConfig, choices: Mapping[str, str], words: Sequence[str]) -> None:
        """Do one job of a sweep, print its errors, and write its outcome.

        A failed job must not end the sweep that it is part of, so only interrupts are raised.
        """
        begun = Outcome(FAILED, "", NOT_ENDED, {}, number, configs.label(words, sweep.swept))
        begun.write(sweep.folder)
        title = sweep.title(number, begun.label)
        with messages():
            logger.info(f"{title}{sweep.left()}")
        start = time.monotonic()
        others = configs.label(words, [key for key in sweep.swept if key not in ("benchmark", "method")])
        try:
            job = configs.nodes(self.name, cfg, choices, words)
            outcome = self._act(Call(job.config, job.runtime, job.overrides, others, _shared(sweep.folder)))
        except BrokenPipeError:
            raise
        except Exception as error:
            _shared.cache_clear()  # its benchmark and network may be in any state
            outcome = _outcome_of(error)
            line = console_lines(outcome.message).partition("\n")[0]
            how = f"skipped: {NOT_APPLICABLE} —" if outcome.status == NOT_APPLICABLE else "error:"
            print(f"{title}: {how} {line}", file=sys.stderr, flush=True)
        seconds = round(time.monotonic() - start, 3)
        replace(outcome, job=number, label=begun.label, seconds=seconds).write(sweep.folder)

    def _hydra(self, args: Namespace, argv: list[str]) -> None:
        """Call `hydra.main`, whose errors then come out as ours."""
        main = hydra.main(version_base=configs.VERSION_BASE, config_path=str(paths.config_dir()), config_name=self.name)
        words = configs.with_folders(argv, [added.path for added in config_folders(args.config_dir)[1:]])
        # Hydra reads no other arguments. By default it prints an error itself and exits, but for this variable.
        before, sys.argv = sys.argv, [f"python -m openbench {self.name}", *words]
        os.environ["HYDRA_FULL_ERROR"] = "1"
        try:
            with configs.explained(self.name, args.overrides, args.config_dir):
                main(self.job)()
        finally:
            sys.argv = before

    def _refuse_unused(self, args: Namespace) -> None:
        for override in configs.parse(args.overrides):
            node = override.key_or_group.split(".")[0]
            if node in self.unused:
                raise ConfigError(
                    f"`{self.name}` does not depend on {node}, found {override.input_line} — leave it out, or give it "
                    "to `run`"
                )


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
def _shared(sweep: Path) -> "SharedObjects":
    """The benchmark and network that the jobs of a sweep leave to the next one in this process."""
    from openbench.engine.prepare import SharedObjects

    return SharedObjects()


def _close(sweep: Sweep) -> None:
    """Print the numbers of a sweep, and how its jobs ended."""
    try:
        if any(outcome.status not in MISSING for outcome in sweep.outcomes()):
            print(to_console(sweep.table()), end="", flush=True)
    finally:  # stdout may be full
        print(sweep.summary(), file=sys.stderr, flush=True)


def _folder(cfg: DictConfig, overrides: Sequence[str]) -> Path:
    """The folder of a sweep: that of `hydra.sweep.dir`, else a new one in the cache, which launchers share."""
    if any(override.key_or_group == "hydra.sweep.dir" for override in configs.parse(overrides)):
        return Path(cfg.hydra.sweep.dir).absolute()
    cache = cfg.runtime.cache
    root = paths.cache_dir() if cache is None else paths.writable(Path(str(cache)).expanduser(), "runtime.cache")
    return root / "sweeps" / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S-%f}-{os.getpid()}"


def score_benchmark(call: Call) -> Outcome:
    """Run, then print warnings, notes, the overview table and the path of the record; in a sweep one line instead."""
    from openbench.core.runtime import Runtime
    from openbench.engine.prepare import prepare
    from openbench.engine.run import run

    setting = Runtime.from_config(call.runtime)
    if setting.on_existing != "verify":
        RecordStore(setting.records).check_writable()  # before a training begins
    outcome = run(prepare(call.config, setting, shared=call.shared, overrides=call.overrides), setting)
    line = f"{outcome.status} {outcome.path}"
    warnings = (*(outcome.record.provenance.get(WARNINGS) or ()), *outcome.warnings)
    in_sweep = call.shared is not None  # where a job is brief
    before = warnings if in_sweep else (*warnings, *outcome.notes)
    if before:
        print(console_lines("\n".join(before)), flush=True)
    if in_sweep:
        print(f"{headline(outcome.record, call.label)} — {line}", flush=True)
    else:
        print_tables(run_tables(outcome.record))
        print(line)
    return Outcome(OK, line, outcome.status, group_auroc(outcome.record))


def train_network(call: Call) -> Outcome:
    """Train, and print where the checkpoint is."""
    from openbench.engine.prepare import train
    from openbench.training.loop.distributed import team

    trained = train(call.config, call.runtime)
    line = f"{trained.backbone.name}: {trained.source}"
    if team(call.runtime.get("device", "auto")).leads:
        print(line)
    return Outcome(OK, line)


def fill_cache(call: Call) -> Outcome:
    """Extract, and print how many images went through the network for each split; 0 = all were cached."""
    from openbench.engine.prepare import extract

    passes = extract(call.config, call.runtime)
    for split, images in passes.items():
        print(f"{images:>10,}  {split}")
    line = f"{sum(passes.values()):,} images passed for {len(passes)} splits"
    print(line)
    return Outcome(OK, line)


def check_benchmark(call: Call) -> Outcome:
    """Check, print the report and its verdict, and fail if there are problems."""
    from openbench.engine.prepare import check

    report = check(call.config, call.runtime)
    print(f"{report}\n{report.verdict}")
    return Outcome(OK, report.verdict) if report.ok else Outcome(FAILED, report.verdict, FAILED_STATUS)


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


RUN = HydraCommand("run", score_benchmark)
TRAIN = HydraCommand("train", train_network, unused=("method", "tune", "metrics"))
EXTRACT = HydraCommand("extract", fill_cache, unused=("tune", "metrics"), divided=True)
CHECK = HydraCommand("check", check_benchmark)  # its exit code is 1 if anything does not hold
