"""What the commands share: a class for them, types of arguments, and options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from openbench import paths

Function = TypeVar("Function", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


class _Verbatim:
    """Shows the epilog, examples above all, as it is written."""

    epilog: str | None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the epilog without wrapping its lines."""
        if self.epilog:
            formatter.write(f"\n{self.epilog}")


class Command(_Verbatim, click.Command):
    """A command with examples."""


class Group(_Verbatim, click.Group):
    """A group of commands with examples."""


def names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas: a type of options."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def table_format(default: str | None = "console") -> Callable[[Function], Function]:
    """Return the option `--format`: how tables are written."""
    from openbench.results.tables.render import FORMATS

    return click.option("--format", "form", type=click.Choice(list(FORMATS)), default=default, help="of tables")


config_dir = click.option("--config-dir", type=FILE, metavar="DIR", help="a folder of your own group files")
results = click.option(
    "--results",
    type=FILE,
    metavar="DIR",
    default=paths.results_dir,
    help="folder that holds records/ (default: OPENBENCH_RESULTS, else ./results)",
)
cache = click.option(
    "--cache",
    type=FILE,
    metavar="DIR",
    default=paths.cache_dir,
    help="the cache (default: OPENBENCH_CACHE, else ~/.cache/openbench)",
)
json_file = click.option("--json", "json", type=FILE, metavar="FILE", help="write every number as JSON")
