"""`sweep status`: how far sweeps are."""

from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import click

from openbench.cli import options
from openbench.cli.hydra.outcome import MISSING, PLAN, Sweep
from openbench.cli.output import note, print_tables
from openbench.cli.process import FAILED, OK
from openbench.config.overrides import command_line
from openbench.errors import ConfigError
from openbench.results.tables.render import Column, Table

_LATEST = 10  # sweeps that are listed


@click.group(cls=options.Group, no_args_is_help=False)
def sweep() -> None:
    """Show how far sweeps are."""


@sweep.command()
@click.argument("folder", required=False, metavar="[FOLDER]")
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
    sweeps = args.cache / "sweeps"
    if args.folder is None:
        print_tables([_overview(sweeps)], args.form)
        return OK
    path = Path(args.folder)
    one = Sweep.read(path if (path / PLAN).is_file() else sweeps / path)
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
