"""`sweep status`: how far sweeps are, from what their jobs left and from records."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from openbench import paths
from openbench.cli.hydra.states import FINISHED, State, details, kept_sweep, kept_sweeps, overview, states_of_words
from openbench.cli.left_out import left_out
from openbench.cli.process import FAILED, OK
from openbench.compose.config import check_no_clash
from openbench.config.overrides import command_line
from openbench.errors import ConfigError
from openbench.results.records.store import OnError, RecordStore

COMMANDS = ("run", "train", "extract", "check")
_LATEST = 10  # sweeps that are listed
_EPILOG = """\
Without a name it lists the latest sweeps. With a folder, or its name in that list, it says what became of each job of
that sweep. With the words of a sweep, as they are typed after `openbench`, it looks at all sweeps and at the records,
whoever made them, and names the command that makes what is missing.

  python -m openbench sweep status
  python -m openbench sweep status 2026-11-22T17-27-38-16617
  python -m openbench sweep status run -m +benchmark=digits method=knn,msp seed=0,1,2

done: the job ended well and its record is there · running: since when · queued: its sweep lives and will hand it out ·
failed: why · interrupted: its process was killed · to do: nothing of it is there. The exit code is 0 if every job is
done or not applicable, else 1: so a script repeats a sweep until it is done.
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_intermixed_args(argv)
    sweeps = (arguments.cache or paths.cache_dir()) / "sweeps"
    words = [word for word in arguments.sweep if word not in COMMANDS]
    if not arguments.sweep:
        found = kept_sweeps(sweeps)[:_LATEST]
        print(overview(found) if found else f"no sweep is kept below '{sweeps}'\n", end="")
        return OK
    if any("=" in word for word in words):
        return _of_words(arguments, words, sweeps)
    if len(arguments.sweep) > 1:
        raise ConfigError(
            f"sweep status — found {' '.join(arguments.sweep)} — allowed: one folder, or a sweep as it was typed, e.g. "
            "run -m +benchmark=digits method=knn,msp"
        )
    kept = kept_sweep(arguments.sweep[0], sweeps)
    states = kept.states()
    print(details(states, f"sweep {kept.folder.name}"), end="")
    if kept.plan.command:
        _say_again(states, kept.plan.command, kept.plan.words, None, kept.alive)
    return _code(states)


def _of_words(arguments: argparse.Namespace, words: list[str], sweeps: Path) -> int:
    """Look for the jobs of a sweep that is typed."""
    if arguments.config_dir is not None:
        check_no_clash(arguments.config_dir)
    command = next((word for word in arguments.sweep if word in COMMANDS), "run")
    kept = [one for one in kept_sweeps(sweeps) if one.plan.command in (command, "")]
    with left_out() as lost:
        record = _records(words, arguments, lost.append) if command == "run" else _none
        states = states_of_words(words, kept, record, arguments.config_dir)
    print(details(states, " ".join((command, *words))), end="")
    alive = any(one.alive and set(one.plan.words) >= set(words) for one in kept)
    _say_again(states, command, words, arguments.config_dir, alive)
    return max(_code(states), lost.code)


def _none(job: Sequence[str]) -> str:
    """What leaves no record has none."""
    return ""


def _records(words: Sequence[str], arguments: argparse.Namespace, on_error: OnError) -> Callable[[Sequence[str]], str]:
    """What names the record of a job's overrides, as `study` finds those of its runs."""
    from openbench.studies.made import Archive
    from openbench.studies.wanted import key_of, wanted

    store = RecordStore(arguments.results or paths.results_dir())
    keys = {key_of(word) for word in words if "." in key_of(word)}
    archive = Archive.of(store.readable(on_error), keys, _no_metric, arguments.config_dir)

    def made(job: Sequence[str]) -> str:
        run = [word for word in job if not key_of(word).startswith(("runtime", "hydra"))]
        fitting = archive.fitting(wanted(run, "sweep status", arguments.config_dir))
        return f"record {fitting[0].run.run_id}" if fitting else ""

    return made


def _no_metric(name: str, key: str) -> bool:
    """Whether a metric of a record is read: none is."""
    return False


def _say_again(
    states: Sequence[State], command: str, words: Sequence[str], config_dir: Path | None, alive: bool
) -> None:
    """Name the command that makes what is missing, unless a sweep is at it."""
    if alive or _code(states) == OK:
        return
    again = command_line(command, ["-m", *words], config_dir)
    print(f"what is missing is made by: {again}", file=sys.stderr)


def _code(states: Sequence[State]) -> int:
    return OK if all(state.state in FINISHED for state in states) else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench sweep",
        description="How far sweeps are: what is done, running, failed and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("status",), help="the only one: what is done, running, failed, to do")
    parser.add_argument("sweep", nargs="*", metavar="FOLDER|WORD", help="its folder, or the sweep as it was typed")
    parser.add_argument("-m", "--multirun", action="store_true", help="may stand here as in the sweep's own command")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own group files")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where sweeps are kept (default: OPENBENCH_CACHE)")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder that holds records/ (default: OPENBENCH_RESULTS, ./results)"
    )
    return parser
