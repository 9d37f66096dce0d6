"""`list` and `show`: print the config groups, one entry, or one record."""

import inspect
import logging
import math
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from openbench.cli import options, registry
from openbench.cli.output import print_tables
from openbench.cli.process import OK
from openbench.cli.registry import Entry, parameters_of
from openbench.config.folders import PACKAGE, config_folders
from openbench.config.overrides import STREAM
from openbench.core.record import SOURCES, UNCOMMITTED, ResultRecord
from openbench.errors import ConfigError, RecordError
from openbench.public import TARGET
from openbench.results.escape import console
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.records.origin import made_by, verify_command
from openbench.results.records.settings import hyper_parameters
from openbench.results.records.store import RecordStore
from openbench.results.tables.render import Column, Table, render, rendered
from openbench.results.tables.views import VIEWS, explained, run_tables

logger = logging.getLogger(__name__)
RECORD = "record"
_USAGE = {
    "benchmark": "python -m openbench run +benchmark={name}",
    "method": "python -m openbench run +benchmark=digits method={name}",
    "attack": "python -m openbench run +benchmark=digits +attack={name} method=energy",
    "augment": "python -m openbench train +benchmark=cifar10 +augment={name}",
    "recipe": "python -m openbench train +benchmark=cifar10 recipe@training.recipe={name}",
    "scorer": "python -m openbench run -m +benchmark=digits 'training=glob(*)' +scorer={name}",
    "study": "python -m openbench study {name}",
    "dataset": "used by benchmarks: /dataset@benchmark.near.{name}: {name}",
}
_SPACE = "_space_"
_SEEN = "Whether its labels named a benchmark's OOD classes: python -m openbench data list backbone=NAME BENCHMARK"


def _complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in [*registry.groups(), RECORD] if name.startswith(incomplete)]


def _complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [entry.name for entry in registry.entries(ctx.params["group"]) if entry.name.startswith(incomplete)]


@click.command(cls=options.Command)
@click.argument("group", required=False, metavar="[GROUP]", shell_complete=_complete_group)
@options.config_dir
@options.table_format()
def list_groups(args: Namespace) -> int:
    """List what can be chosen: the groups, or the entries of one, e.g. method, benchmark, backbone."""
    table = overview(args.config_dir) if args.group is None else group_table(args.group, args.config_dir)
    print_tables([table], args.form)
    return OK


@click.command(cls=options.Command)
@click.argument("group", metavar="GROUP", shell_complete=_complete_group)
@click.argument("name", metavar="NAME", shell_complete=_complete_name)
@options.config_dir
@options.table_format()
@options.results
@click.option("--view", default="overview", metavar="VIEW", help=f"of a record: all, or one of {', '.join(VIEWS)}")
@click.option("--explain", is_flag=True, help="of a record: also every convention that the numbers depend on")
def show(args: Namespace) -> int:
    """Show one method, benchmark, backbone, … or one record in full.

    GROUP is one of `list`, and NAME one of its entries; or GROUP is `record`, and NAME a run id, its beginning, or
    `latest`.

    Examples:
      python -m openbench show method knn
      python -m openbench show record latest --view all
    """
    if args.group == RECORD:
        record, _ = RecordStore(args.results).look_up(args.name)
        views = VIEWS if args.view == "all" else (args.view,)
        parts = rendered([table for view in views for table in run_tables(record, view)], args.form)
        parts += [f"{explained(record.header)}\n"] * args.explain
        parts += [f"{_origin(record, args.config_dir, args.results)}\n"] * (args.form == "console")
        print("\n".join(parts), end="")
        return OK
    options.check_read(f"show {args.group}", "GROUP", "NAME", "--config-dir")
    entry = registry.entry(args.group, args.name, args.config_dir)
    print((method_text if entry.group == "method" else config_text)(entry, args.config_dir), end="")
    return OK


def overview(config_dir: Path | None = None) -> Table:
    """Return every group with the number of its entries and the first names."""
    rows = []
    for group in registry.groups(config_dir):
        names = [entry.name for entry in registry.entries(group, config_dir)]
        more = f", … ({len(names) - 8} more)" if len(names) > 8 else ""
        rows.append((group, len(names), ", ".join(names[:8]) + more))
    columns = (Column("group"), Column("entries", "count"), Column("names"))
    return Table("Groups", columns, tuple(rows), notes=("Details: python -m openbench list GROUP",))


def group_table(group: str, config_dir: Path | None = None) -> Table:
    """Return the entries of a group with one line about each; of methods also what they need and their year."""
    headings, facts = _ABOUT.get(group, (("what it is",), lambda entry: (entry.summary,)))
    entries, rows = registry.entries(group, config_dir), []
    ours = config_folders()[0]
    others = any(entry.place != ours for entry in entries)
    for entry in entries:
        try:
            rows.append((entry.name, *facts(entry), *[entry.place.origin] * others))
        except Exception as error:  # a class of a package may raise anything while it is imported
            if entry.place == ours:
                raise
            logger.warning(console(f"{group} '{entry.name}' of {entry.place.origin} is left out: {error}"))
    columns = tuple(map(Column, ("name", *headings, *["from"] * others)))
    notes = (f"Details: python -m openbench show {group} NAME", *[_SEEN] * (group == "backbone"))
    return Table(f"{group} ({len(rows)})", columns, tuple(rows), notes=notes)


def _about_backbone(entry: Entry) -> Sequence[str]:
    """What it is, and what released weights were trained on."""
    from openbench.data.download import released_weights

    weights = released_weights().get(entry.name)
    return entry.summary, *((weights.images, weights.labels) if weights else ("", ""))


# Group → what is listed about its entries; of other groups one line.
_ABOUT: dict[str, tuple[tuple[str, ...], Callable[[Entry], Sequence[str]]]] = {
    "method": (("needs", "year", "score"), lambda entry: (entry.needs(), *entry.about())),
    "backbone": (("what it is", "trained on", "labels"), _about_backbone),
}


def usage(entry: Entry, config_dir: Path | None) -> str:
    """Return a command that uses an entry, with the user's folder where the entry comes from there."""
    template = _USAGE.get(entry.group, f"python -m openbench run +benchmark=digits {entry.group}={{name}}")
    is_users = config_dir is not None and entry.group != "dataset" and config_dir in entry.path.parents
    command = entry.command or template.format(name=shlex.quote(entry.name))
    return command + f" --config-dir {shlex.quote(str(config_dir))}" * (is_users and "--config-dir" not in command)


def method_text(entry: Entry, config_dir: Path | None = None) -> str:
    """Return all about a method: formula, reference, needs, hyper-parameters with default and searched values."""
    made_by, config = entry.made_by(), entry.config()
    space = config.get(_SPACE) or {}
    parameters = parameters_of(made_by)
    values = {key: _one_line(value) for key, value in config.items() if not key.startswith("_")}
    defaults = {name: default for name, (default, _) in parameters.items()} | values
    rows = tuple(
        (name, text, parameters.get(name, ("", ""))[1], ", ".join(map(_one_line, space.get(name, ()))))
        for name, text in defaults.items()
    )
    columns = tuple(map(Column, ("hyper-parameter", "default", "allowed", "searched on validation")))
    notes = (f"{math.prod(map(len, space.values()))} settings in all",) if space else ()
    table = render(Table("Hyper-parameters", columns, rows, notes=notes), "console") if rows else "No hyper-parameters."
    head = f"{entry.name} · {entry.node()[TARGET]}"
    facts = [f"Needs: {entry.needs()}"]
    # The docstring has its own `Reference:` section where there is more to say than the citation.
    facts += [f"Reference: {reference}"] if (reference := getattr(made_by, "reference", "")) else []
    streams = config.get(STREAM)
    facts += [f"Streams: {hyper_parameters(streams)} (method.{STREAM}.KEY=VALUE)"] if streams else []
    run = f"Run: {usage(entry, config_dir)}"
    return "\n\n".join([head, inspect.getdoc(made_by) or "", "\n".join(facts), table.rstrip("\n"), run]) + "\n"


def config_text(entry: Entry, config_dir: Path | None) -> str:
    """Return an entry's file with its comments and, where other files complete it, the values that result."""
    parts = [f"# {entry.path}", entry.text.rstrip("\n")]
    resolved = resolve(entry, config_dir)
    parts += [f"# ----- with all that its defaults bring in -----\n{resolved}"] if resolved else []
    return "\n".join([*parts, f"# {usage(entry, config_dir)}"]) + "\n"


def resolve(entry: Entry, config_dir: Path | None) -> str:
    """Return the node that Hydra composes for an entry, as YAML; empty if the file alone already says it."""
    # Complete only in a benchmark, which chooses the images; not Hydra's; in a recipe; with a training.
    if entry.group in ("dataset", "study", "augment", "scorer"):
        return ""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from openbench.compose.config import compose

    plus = "+" if entry.group in ("attack", "benchmark") else ""
    at = "training.recipe" if entry.group == "recipe" else entry.group
    try:
        composed = compose("run", [f"{plus}{entry.group}{f'@{at}' * (at != entry.group)}={entry.name}"], config_dir)
        node = OmegaConf.select(composed, at)
        text = OmegaConf.to_yaml(node, resolve=True).rstrip("\n")
        same = OmegaConf.to_container(node, resolve=True) == entry.config()
    except (ConfigError, OmegaConfBaseException, ValueError) as error:
        return "# cannot be completed here: " + re.sub(r"\s+", " ", str(error))
    return "" if same else text


def _origin(record: ResultRecord, config_dir: Path | None, results: Path) -> str:
    """What made a record, with which command, and the command that verifies it."""
    from openbench.cli.commands.verify import again, command
    from openbench.results.frame import superseding

    try:
        again(record, config_dir)
        typed = command(record, config_dir)
    except RecordError as error:
        typed = f"none is given: {error}"
    if not typed.isprintable():
        typed = "none can be typed: its config holds characters that cannot be printed"
    supersedes, by = superseding(record, RecordStore(results))
    lines = (
        f"record: {record.run_id}",
        *(f"not ranked: {problem}" for problem in inconsistencies(record)),
        f"made by: {made_by(record)}",
        *(f"uncommitted changes: {name}" for name in record.provenance.get(UNCOMMITTED) or {}),
        *(
            f"source that is not openbench's: {name}{f' {version}' * name.startswith(PACKAGE)}"
            for name, version in (record.provenance.get(SOURCES) or {}).items()
        ),
        *(f"supersedes: {one}" for one in supersedes),
        *([by] if by else []),
        f"command: {typed}",
        f"verify: {verify_command(record.run_id, results, config_dir)}",
    )
    return "\n".join(map(console, lines))


def _one_line(value: Any) -> str:
    return hyper_parameters({"": value}).removeprefix("=")
