"""The class of all commands, and the options and types of arguments that several of them take."""

import inspect
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from openbench import paths
from openbench.errors import ConfigError
from openbench.progress import verbosity

Function = TypeVar("Function", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)
NULL = "null"  # as typed for None
_ALWAYS = ("--results", "--quiet", "--verbose")  # options that may be typed where nothing reads them


class Command(click.Command):
    """A command whose help is its docstring, printed as written, and that takes -q and -v."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += [
            click.Option(["-q", "--quiet"], is_flag=True, help="no progress on stderr, only warnings and errors"),
            click.Option(["-v", "--verbose"], is_flag=True, help="details for debugging on stderr"),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with `args`, what was typed, and with as many messages as the flags ask for."""
        args = Namespace(**ctx.params)
        ctx.params = {"args": args}
        with verbosity("debug" if args.verbose else "warning" if args.quiet else None):
            return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring without wrapping its lines: it holds tables and examples."""
        formatter.write(f"\n{indent(inspect.cleandoc(self.help or ''), '  ')}\n")


class Group(click.Group):
    """A group of such commands."""

    command_class = Command
    format_help_text = Command.format_help_text


def names(text: str) -> tuple[str, ...]:
    """Return names that are separated by commas: a type of options."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def file_option(name: str, metavar: str, text: str) -> Callable[[Function], Function]:
    """Return an option that takes a path."""
    return click.option(name, type=FILE, metavar=metavar, help=text)


def table_format(default: str | None = "console") -> Callable[[Function], Function]:
    """Return the option `--format` of tables."""
    from openbench.results.tables.render import FORMATS

    return click.option("--format", "form", type=click.Choice([*FORMATS]), default=default, help="format of tables")


def fields_of(cls: type, **types: Any) -> Callable[[Function], Function]:
    """Return an option for each field of a dataclass, None where it is not typed.

    The help of an option is the first line about its field in the docstring of the class.

    Args:
        cls: a dataclass whose fields have defaults.
        **types: of options; that of the default where none is given; a list of it where the default is a tuple.
    """

    def options(command: Function) -> Function:
        for field in reversed(fields(cls)):
            several = isinstance(field.default, tuple)
            kind = types.get(field.name, type(field.default[0] if several else field.default))
            metavar = None if isinstance(kind, click.Choice) else "NAME" if kind is str else "N"
            default = ",".join(map(str, field.default)) if several else field.default
            meaning = re.search(rf"^ *{field.name}: (.+?)[.;]?$", cls.__doc__ or "", flags=re.MULTILINE)
            command = click.option(
                f"--{field.name.replace('_', '-')}",
                type=_list_of(kind) if several else kind,
                metavar="A,B,…" if several else metavar,
                help=f"{meaning.group(1) if meaning else ''} (default: {default})",
            )(command)
        return command

    return options


def chosen(args: Namespace, cls: type) -> dict[str, Any]:
    """Return the values of the options of `fields_of` that were typed."""
    typed = {field.name: getattr(args, field.name) for field in fields(cls)}
    return {name: None if value == NULL else value for name, value in typed.items() if value is not None}


def check_read(what: str, *read: str) -> None:
    """Check that nothing was typed that a way of calling the current command does not read.

    Args:
        what: the option, or how else users call that way.
        *read: the longest names of the options that it reads too, e.g. `--format`.

    Raises:
        ConfigError: something was.
    """
    context, known = click.get_current_context(), (*what.split(), *read, *_ALWAYS)
    names = {
        max(p.opts, key=len) if isinstance(p, click.Option) else p.human_readable_name: p
        for p in context.command.params
    }
    typed = [n for n, p in names.items() if context.get_parameter_source(p.name or "") == ParameterSource.COMMANDLINE]
    if unread := [name for name in typed if name not in known]:
        raise ConfigError(f"{', '.join(unread)} has no effect, as {what} does not read it — leave it out")


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    return lambda text: tuple(map(kind, names(text)))


config_dir = file_option("--config-dir", "DIR", "a folder with your own group files")
json_file = file_option("--json", "FILE", "write every number as JSON")
results = click.option(
    "--results",
    type=FILE,
    metavar="DIR",
    default=paths.results_dir,
    help="the folder that holds records/ (default: OPENBENCH_RESULTS, else ./results)",
)
cache = click.option(
    "--cache",
    type=FILE,
    metavar="DIR",
    default=paths.cache_dir,
    help="the cache (default: OPENBENCH_CACHE, else ~/.cache/openbench)",
)
