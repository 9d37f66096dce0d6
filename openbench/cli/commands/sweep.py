"""`sweep status`: how far sweeps are, from what their jobs left."""

from contextlib import suppress
from pathlib import Path

import click

from openbench.cli import options
from openbench.cli.hydra.outcome import MISSING, PLAN, Sweep
from openbench.cli.process import FAILED, OK
from openbench.config.overrides import command_line
from openbench.errors import ConfigError
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


@click.group(no_args_is_help=False)
def sweep() -> None:
    """Say how far sweeps are."""


@sweep.command(cls=options.Command, epilog=_EPILOG)
@click.argument("folder", required=False, metavar="[FOLDER]")
@options.cache
def status(folder: str | None, cache: Path) -> int:
    """Say what of a sweep is done, failed and why, and missing; FOLDER is its own, or its name in the list."""
    sweeps = cache / "sweeps"
    if folder is None:
        print(_overview(sweeps), end="")
        return OK
    named = Path(folder)
    found = Sweep.read(named if (named / PLAN).is_file() else sweeps / named)
    outcomes = found.outcomes()
    print(f"{to_console(found.table())}{found.summary()}")
    if any(outcome.status in MISSING for outcome in outcomes):
        print(f"what is missing is made by: {command_line(found.command, ['-m', *found.words])}")
    return FAILED if any(outcome.code for outcome in outcomes) else OK


def _overview(sweeps: Path) -> str:
    """A table of the latest sweeps, with how many of their jobs ended how."""
    found = []
    for file in sorted(sweeps.glob(f"*/{PLAN}"), reverse=True)[:_LATEST]:
        with suppress(ConfigError):  # of another version
            found.append(Sweep.read(file.parent))
    if not found:
        return f"no sweep is kept below '{sweeps}'\n"
    rows = tuple((one.folder.name, one.counts(), " ".join((one.command, "-m", *one.words))) for one in found)
    return to_console(Table("sweeps, the latest first", tuple(map(Column, ("sweep", "jobs", "command"))), rows))
