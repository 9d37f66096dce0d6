"""`list` and `show`: the config directory is the registry; these commands print it, without importing torch."""

import argparse
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.cli.left_out import left_out
from openbench.cli.method_source import MethodSource, method_source
from openbench.cli.process import OK
from openbench.core.record import SOURCES, UNCOMMITTED, ResultRecord
from openbench.errors import ConfigError, RecordError, did_you_mean
from openbench.results.escape import console
from openbench.results.leaderboard.consistency import inconsistencies
from openbench.results.records.origin import made_by, verify_command
from openbench.results.records.settings import hyper_parameters
from openbench.results.tables.conventions import explained
from openbench.results.tables.render import FORMATS, render, rendered
from openbench.results.tables.table import Column, Table
from openbench.results.tables.views import VIEWS, run_tables

RECORD = "record"
_USAGE = {
    "benchmark": "python -m openbench run +benchmark={name}",
    "method": "python -m openbench run +benchmark=digits method={name}",
    "augment": "python -m openbench train +benchmark=cifar10 +augment={name}",
    "recipe": "python -m openbench train +benchmark=cifar10 recipe@training.recipe={name}",
    "streaming": "python -m openbench stream {name} +benchmark=digits",
    "scorer": "python -m openbench run -m +benchmark=digits 'training=glob(*)' +scorer={name}",
    "study": "python -m openbench study {name}",
    "dataset": "used by benchmarks: /dataset@benchmark.near.{name}: {name}",
}
_TARGET, _SPACE = "_target_", "_space_"


@dataclass(frozen=True)
class Entry:
    """One file of a config group.

    Args:
        group: e.g. `method`.
        name: what users type.
        path: the file.
        folders: where the module of a `_target_` may lie, besides Python's path.
    """

    group: str
    name: str
    path: Path
    folders: tuple[Path, ...] = ()

    @property
    def text(self) -> str:
        """The file as written.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return self.path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: cannot be read — {error} — correct the file") from error

    @property
    def summary(self) -> str:
        """The first comment line that is neither a command nor a Hydra directive."""
        for line in self.text.splitlines():
            comment = line.removeprefix("#").strip()
            if not line.startswith("#"):
                break
            if comment and not comment.startswith(("@package", "python -m")):
                return comment
        return ""

    @property
    def command(self) -> str:
        """The command that its comments give; empty if they give none."""
        comments = (line.removeprefix("#").strip() for line in self.text.splitlines() if line.startswith("#"))
        return next((comment for comment in comments if comment.startswith("python -m openbench")), "")

    def config(self) -> dict[str, Any]:
        """The file as plain values, interpolations untouched.

        Raises:
            ConfigError: not YAML, or not a mapping.
        """
        from openbench.storage.yaml_file import read_yaml

        found = read_yaml(self.path)
        if not isinstance(found, dict):
            raise ConfigError(f"{self.path}: found a {type(found).__name__} — a mapping is needed")
        return {str(key): value for key, value in found.items()}

    def source(self) -> MethodSource:
        """What the class of a method says about itself.

        Raises:
            ConfigError: the file names no class, or its source is not there.
        """
        target = self.config().get(_TARGET)
        if not isinstance(target, str):
            raise ConfigError(f"{self.path}: no `{_TARGET}` — every method names its class, e.g. package.module.Class")
        return method_source(target, self.folders)


def main(argv: list[str]) -> int:
    """List the groups, or what one group offers."""
    arguments = _list_parser().parse_args(argv)
    registry = Registry.of(arguments.config_dir)
    table = registry.overview() if arguments.group is None else registry.table(arguments.group)
    print(render(table, arguments.format), end="")
    return OK


def show(argv: list[str]) -> int:
    """Show one entry of a group, or the tables of one record."""
    arguments = _show_parser().parse_args(argv)
    if arguments.group == RECORD:
        with left_out() as lost:
            print(record_text(arguments, lost.append), end="")
        return lost.code
    entry = Registry.of(arguments.config_dir).entry(arguments.group, arguments.name)
    text = method_text if entry.group in ("method", "streaming") else config_text
    print(text(entry, arguments.config_dir), end="")
    return OK


@dataclass(frozen=True)
class Registry:
    """The config groups of openbench and, beside them, those of a user.

    Args:
        roots: config folders, ours first.
    """

    roots: tuple[Path, ...]

    @classmethod
    def of(cls, config_dir: Path | None) -> "Registry":
        """The shipped folder and the user's.

        Raises:
            ConfigError: the user's folder is missing, or holds a file that ours would hide.
        """
        if config_dir is None:
            return cls((paths.config_dir(),))
        from openbench.compose.config import check_no_clash

        check_no_clash(config_dir)
        return cls((paths.config_dir(), config_dir))

    def groups(self) -> list[str]:
        """The names of groups that offer something."""
        return sorted({file.relative_to(root).parts[0] for root in self.roots for file in root.glob("*/**/*.yaml")})

    def entries(self, group: str) -> list[Entry]:
        """What a group offers, by name.

        Raises:
            ConfigError: no such group.
        """
        known = {folder.name for root in self.roots for folder in root.iterdir() if folder.is_dir()}
        if group not in known:
            available = ", ".join(self.groups())
            raise ConfigError(
                f"group '{group}' not found in configs{did_you_mean(group, known)} — available: {available} "
                "(python -m openbench list)"
            )
        beside = tuple(folder for root in self.roots[1:] for folder in (root, root.parent))
        files = [(root / group, file) for root in self.roots for file in (root / group).rglob("*.yaml")]
        found = [Entry(group, _name(folder, file), file, beside) for folder, file in files]
        return sorted(found, key=lambda entry: entry.name)

    def entry(self, group: str, name: str) -> Entry:
        """One entry.

        Raises:
            ConfigError: no such group or name.
        """
        entries = {entry.name: entry for entry in self.entries(group)}
        if name not in entries:
            hint = did_you_mean(name, entries) or f" — available: {', '.join(entries) or 'none'}"
            raise ConfigError(f"{group} '{name}' not found in configs/{group}{hint} (python -m openbench list {group})")
        return entries[name]

    def overview(self) -> Table:
        """Every group with the number of its entries and the first names."""
        rows = []
        for group in self.groups():
            names = [entry.name for entry in self.entries(group)]
            more = f", … ({len(names) - 8} more)" if len(names) > 8 else ""
            rows.append((group, len(names), ", ".join(names[:8]) + more))
        columns = (Column("group"), Column("entries", "count"), Column("names"))
        return Table("Groups", columns, tuple(rows), notes=("Details: python -m openbench list GROUP",))

    def table(self, group: str) -> Table:
        """The entries of a group with one line about each; of methods also what they need and their year."""
        entries = self.entries(group)
        note = (f"Details: python -m openbench show {group} NAME",)
        if group == "backbone":
            return _backbone_table(entries, note)
        if group != "method":
            rows = tuple((entry.name, entry.summary) for entry in entries)
            return Table(f"{group} ({len(rows)})", (Column("name"), Column("what it is")), rows, notes=note)
        sources = [entry.source() for entry in entries]
        listed = tuple((e.name, str(s.needs), s.year, s.summary) for e, s in zip(entries, sources, strict=True))
        columns = tuple(map(Column, ("name", "needs", "year", "score")))
        return Table(f"method ({len(listed)})", columns, listed, notes=note)


def _backbone_table(entries: list[Entry], note: tuple[str, ...]) -> Table:
    """Backbones with what those with released weights were trained on."""
    from openbench.data.download.weights import released_weights

    rows = []
    for entry in entries:
        weights = released_weights().get(entry.name)
        facts = (weights.pretraining.images, weights.pretraining.labels) if weights else ("", "")
        rows.append((entry.name, entry.summary, *facts))
    columns = tuple(map(Column, ("name", "what it is", "trained on", "labels")))
    seen = "Whether its labels named a benchmark's OOD classes: python -m openbench data list backbone=NAME BENCHMARK"
    return Table(f"backbone ({len(rows)})", columns, tuple(rows), notes=(*note, seen))


def _name(folder: Path, file: Path) -> str:
    """What users type for a file of a group: its path below the group's folder, since studies lie in folders."""
    return file.relative_to(folder).as_posix().removesuffix(".yaml")


def usage(entry: Entry, config_dir: Path | None) -> str:
    """Return a command that uses an entry, with the user's folder where the entry comes from there."""
    template = _USAGE.get(entry.group, f"python -m openbench run +benchmark=digits {entry.group}={{name}}")
    own = config_dir is not None and entry.group != "dataset" and config_dir in entry.path.parents
    command = entry.command or template.format(name=shlex.quote(entry.name))
    return command + f" --config-dir {shlex.quote(str(config_dir))}" * (own and "--config-dir" not in command)


def method_text(entry: Entry, config_dir: Path | None = None) -> str:
    """Return all about a method: formula, reference, needs, hyper-parameters with default and searched values."""
    source, config = entry.source(), entry.config()
    space = config.get(_SPACE) or {}
    defaults = source.parameters | {k: _one_line(v) for k, v in config.items() if not k.startswith("_")}
    rows = tuple(
        (name, text, source.ranges.get(name, ""), ", ".join(map(_one_line, space.get(name, ()))))
        for name, text in defaults.items()
    )
    columns = tuple(map(Column, ("hyper-parameter", "default", "allowed", "searched on validation")))
    count = 1
    for values in space.values():
        count *= len(values)
    notes = (f"{count} settings in all",) if space else ()
    table = render(Table("Hyper-parameters", columns, rows, notes=notes), "console") if rows else "No hyper-parameters."
    head = f"{entry.name} · {config[_TARGET]}"
    facts = [f"Needs: {source.needs}"]
    # The docstring has its own `Reference:` section where there is more to say than the citation.
    facts += [f"Reference: {source.reference}"] if source.reference else []
    run = f"Run: {usage(entry, config_dir)}"
    return "\n\n".join([head, source.docstring, "\n".join(facts), table.rstrip("\n"), run]) + "\n"


def config_text(entry: Entry, config_dir: Path | None) -> str:
    """Return an entry's file with its comments and, where other files complete it, the values that result."""
    parts = [f"# {entry.path}", entry.text.rstrip("\n")]
    resolved = resolve(entry, config_dir)
    parts += [f"# ----- with all that its defaults bring in -----\n{resolved}"] if resolved else []
    return "\n".join([*parts, f"# {usage(entry, config_dir)}"]) + "\n"


def resolve(entry: Entry, config_dir: Path | None) -> str:
    """Return the node that Hydra composes for an entry, as YAML; empty if the file alone already says it."""
    if entry.group in ("dataset", "study"):
        return (
            ""  # a data set is complete only inside a benchmark, which chooses its images; a study is none of Hydra's
        )
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from openbench.compose.config import compose
    from openbench.compose.interpolations import limited

    plus = "+" if entry.group in ("augment", "benchmark", "scorer") else ""
    try:
        composed = compose("run", [f"{plus}{entry.group}={entry.name}"], config_dir)
        with limited(entry.group):
            node = OmegaConf.select(composed, entry.group)
            text = OmegaConf.to_yaml(node, resolve=True).rstrip("\n")
            same = OmegaConf.to_container(node, resolve=True) == entry.config()
    except (HydraException, OmegaConfBaseException, ConfigError, ValueError) as error:
        return "# cannot be completed here: " + re.sub(r"\s+", " ", str(error))
    return "" if same else text


def record_text(arguments: argparse.Namespace, on_error: Callable[[RecordError], None]) -> str:
    """Return the tables of a record and, on the console, what made it and the command that verifies it.

    Args:
        arguments: which record, and how it is shown.
        on_error: receives an error for each file that fits the name but is not a record.

    Raises:
        RecordError: none has this run id, or several begin with it.
    """
    from openbench.results.records.store import RecordStore

    results = arguments.results or paths.results_dir()
    record, _ = RecordStore(results).look_up(arguments.name, on_error)
    views = VIEWS if arguments.view == "all" else (arguments.view,)
    tables = [table for view in views for table in run_tables(record, view)]
    parts = rendered(tables, arguments.format)
    parts += [f"{explained(record.header)}\n"] * arguments.explain
    parts += [f"{_origin(record, arguments.config_dir, results)}\n"] * (arguments.format == "console")
    return "\n".join(parts)


def _origin(record: ResultRecord, config_dir: Path | None, results: Path) -> str:
    """What made a record, with which command, and the command that verifies it."""
    from openbench.cli.reproduce import GONE, command
    from openbench.results.records.store import RecordStore
    from openbench.results.records.superseded import superseding

    try:
        typed = command(record, config_dir) or GONE
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
        *(f"source that is not openbench's: {name}" for name in record.provenance.get(SOURCES) or {}),
        *(f"supersedes: {one}" for one in supersedes),
        *([by] if by else []),
        f"command: {typed}",
        f"verify: {verify_command(record.run_id, results, config_dir)}",
    )
    return "\n".join(map(console, lines))


def _one_line(value: Any) -> str:
    return hyper_parameters({"": value}).removeprefix("=")


def _list_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench list", description="What can be chosen: groups, or the entries of one group."
    )
    parser.add_argument("group", nargs="?", help="method, benchmark, backbone, dataset, training, …")
    _add_common(parser)
    return parser


def _show_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench show", description="All about one method, benchmark, backbone, … or one record."
    )
    parser.add_argument("group", help=f"a group of `list`, or {RECORD}")
    parser.add_argument("name", help=f"a name of that group; for {RECORD}, a run id, its beginning, or latest")
    _add_common(parser)
    parser.add_argument("--results", type=Path, metavar="DIR", help=f"{RECORD}: the results folder")
    parser.add_argument(
        "--view", default="overview", metavar="VIEW", help=f"{RECORD}: all, or one of {', '.join(VIEWS)}"
    )
    parser.add_argument(
        "--explain", action="store_true", help=f"{RECORD}: also print every convention that the numbers depend on"
    )
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own group files")
    parser.add_argument("--format", default="console", choices=list(FORMATS), help="how tables are written")
