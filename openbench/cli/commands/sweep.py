"""`sweep status`: how far sweeps are, from what their jobs left."""

import argparse
from pathlib import Path

from openbench import paths
from openbench.cli.hydra.outcome import MISSING, PLAN, Sweep
from openbench.cli.process import FAILED, OK
from openbench.config.overrides import command_line
from openbench.results.tables.render import Column, Table, to_console

_LATEST = 10  # sweeps that are listed
_EPILOG = """\
Without a name it lists the latest sweeps. With a folder, or its name in that list, it says what became of each job of
that sweep.

  python -m openbench sweep status
  python -m openbench sweep status 2026-11-22T17-27-38-123456-16617

not ended: the job runs, or its process was killed · not run: it has not begun. The exit code is 0 if no job is missing
or has failed, else 1: so a script repeats a sweep until it is done.
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    sweeps = (arguments.cache or paths.cache_dir()) / "sweeps"
    if arguments.sweep is None:
        print(_overview(sweeps), end="")
        return OK
    named = Path(arguments.sweep)
    sweep = Sweep.read(named if (named / PLAN).is_file() else sweeps / named)
    outcomes = sweep.outcomes()
    print(f"{to_console(sweep.table())}{sweep.summary()}")
    if any(outcome.status in MISSING for outcome in outcomes):
        print(f"what is missing is made by: {command_line(sweep.command, ['-m', *sweep.words])}")
    return FAILED if any(outcome.code for outcome in outcomes) else OK


def _overview(sweeps: Path) -> str:
    """A table of the latest sweeps, with how many of their jobs ended how."""
    found = [Sweep.read(file.parent) for file in sorted(sweeps.glob(f"*/{PLAN}"), reverse=True)[:_LATEST]]
    if not found:
        return f"no sweep is kept below '{sweeps}'\n"
    rows = tuple((one.folder.name, one.counts(), " ".join((one.command, "-m", *one.words))) for one in found)
    return to_console(Table("sweeps, the latest first", tuple(map(Column, ("sweep", "jobs", "command"))), rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench sweep",
        description="How far sweeps are: what is done, failed and why, and missing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=("status",), help="the only one")
    parser.add_argument("sweep", nargs="?", metavar="FOLDER", help="of a sweep, or its name in the list")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where sweeps are kept (default: OPENBENCH_CACHE)")
    return parser
