"""`leaderboard`: bring the tables under results/leaderboard up to date with the records, or show them one by one."""

import fnmatch
import gc
import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import click

from openbench import paths
from openbench.cli import options
from openbench.cli.output import note, print_tables, say_left_out
from openbench.cli.process import FAILED, OK, writing
from openbench.cli.registry import method_facts
from openbench.config.folders import merged, names, shipped
from openbench.core.benchmark import canonical
from openbench.data.dataset import SetConfig
from openbench.data.download import Weights, released_weights
from openbench.errors import ConfigError, OpenbenchError, RecordError, available, did_you_mean, not_found
from openbench.public import TARGET, public
from openbench.results.escape import console
from openbench.results.leaderboard import matrix
from openbench.results.leaderboard.across import ACROSS, COST, ID, across, across_csv, costs, needed
from openbench.results.leaderboard.pages import (
    FOLDER,
    PublishedBoard,
    generate,
    outdated,
    published_boards,
    ranked_table,
    raw,
    unranked_table,
    write,
)
from openbench.results.leaderboard.ranking import Board, board_keys, boards_in
from openbench.results.records.store import OnError, RecordStore
from openbench.results.scores.stored import PUBLISHED, ScoreStore
from openbench.results.tables.render import Table
from openbench.results.tables.views import GROUPS, explained, without_repeats
from openbench.storage.yaml_file import read_yaml

AnyBoard = TypeVar("AnyBoard", Board, PublishedBoard)
_BOARD = "board"
_PAPER = ("near", "far", "near AUROC", "far AUROC")  # columns of a table for a paper
_FEW = 5  # columns of numbers in one where it has none of these
_MATRICES = (*matrix.VIEWS, matrix.BENCHMARKS)
_UNKNOWN = "not known"  # whether weights that openbench does not list have met a class
# What of a backbone's node tells which weights it has, whatever its name.
_WEIGHTS = (TARGET, "model", "weights", "sha256")
_ATTRIBUTES = ("method", "training", "augment", "outliers", "backbone", "tuned")


_WITHOUT_SETS = (_BOARD, COST, ID, "prediction_sets")  # views that do not read --of
# Ways of calling that read few options: the option, its argument, and the options that they read.
_MODES = (
    ("--site", "site", "--reports"),
    ("--check", "check"),
    ("--plots", "plots"),
    ("--published", "published", "--benchmark", "--columns", "--format"),
)


def _condition(text: str) -> tuple[str, tuple[str, ...]]:
    """What a row must have, KEY=VALUE,…, as a pair."""
    attribute, equals, values = text.partition("=")
    if attribute not in _ATTRIBUTES or not equals or not options.names(values):
        raise click.BadParameter(
            f"found {text!r}{did_you_mean(attribute, _ATTRIBUTES)} — allowed: KEY=VALUE,…, where KEY is one of "
            f"{', '.join(_ATTRIBUTES)} and VALUE may hold *"
        )
    return attribute, options.names(values)


@click.command(cls=options.Command)
@options.results
@click.option("--plots", is_flag=True, help="also draw near against far AUROC of every benchmark")
@click.option("--check", is_flag=True, help="write nothing; exit code 1 if something would change")
@click.option("--site", type=options.FILE, metavar="DIR", help="write a page to sort, filter and compare; no server")
@click.option("--reports", is_flag=True, help="with --site: also the page of every run with published scores")
@click.option("--published", is_flag=True, help="print published results, and runs of your own beside them")
@click.option(
    "--view", type=click.Choice([_BOARD, *ACROSS, COST, *_MATRICES]), help=f"print these numbers (default: {_BOARD})"
)
@click.option(
    "--benchmark", "benchmarks", type=options.names, default="", metavar="NAME,…", help="only these; * allowed"
)
@click.option(
    "--where", type=_condition, multiple=True, metavar="KEY=VALUE,…", help=f"print only these: {', '.join(_ATTRIBUTES)}"
)
@click.option("--of", type=options.names, default="", metavar="SET,…", help="groups or sets (default: near,far)")
@click.option("--metric", default="auroc", metavar="KEY", help=f"of --view {', '.join(_MATRICES)} (default: auroc)")
@click.option("--columns", type=options.names, default="", metavar="NAME,…", help="only these columns, in this order")
@options.table_format(None)
@click.option("--explain", is_flag=True, help="also print every convention that the numbers depend on")
def leaderboard(args: Namespace) -> int:
    """Make the tables of results/leaderboard from the records; without new records nothing changes.

    With --view, --benchmark, --where, --of, --columns or --format tables are printed instead. --of takes near, far,
    pooled_near, pooled_far, the names of sets, or `sets` for each of them. A LaTeX table has the methods with near and
    far, or with five numbers of another view, unless --columns names others. --of alone prints the overview.

    Examples:
      python -m openbench leaderboard
      python -m openbench leaderboard --benchmark digits --where outliers=none --where training=cross_entropy,logitnorm
      python -m openbench leaderboard --view selective --of near
      python -m openbench leaderboard --benchmark cifar10 --view overview --columns method,near,tin --format latex
      python -m openbench leaderboard --view overview --format csv
      python -m openbench leaderboard --published --benchmark imagenet1k
      python -m openbench leaderboard --view networks --benchmark cifar10_32px --metric fpr95
      python -m openbench leaderboard --view benchmarks --benchmark cifar10_32px,digits --where training=cross_entropy
      python -m openbench leaderboard --view cost --benchmark cifar10_32px
      python -m openbench leaderboard --site site
    """
    results: Path = args.results
    if not results.is_dir():
        raise RecordError(
            f"results folder '{results}' not found — give one with --results DIR or OPENBENCH_RESULTS; "
            "`python -m openbench run` makes it"
        )
    if args.reports and args.site is None:
        raise ConfigError("--reports needs --site — the pages of runs are part of the site: --site DIR")
    if args.metric != "auroc" and args.view not in _MATRICES:
        raise ConfigError(f"--metric {args.metric} has no effect — it is read by --view {', '.join(_MATRICES)}")
    for mode, typed, *read in _MODES:
        if getattr(args, typed):
            options.check_read(mode, *read)
    if args.of and args.view in _WITHOUT_SETS:
        raise ConfigError(f"--of has no effect, as --view {args.view} does not read it — leave it out")
    if args.site is not None:
        return _site(results, args.site, reports=args.reports)
    if any((args.published, args.view, args.benchmarks, args.where, args.form, args.of, args.columns, args.explain)):
        return _show(args)
    gc.set_threshold(100_000)  # records are many objects without cycles, among which there is no garbage
    made = generate(results, class_overlap)
    if args.check:
        changed = outdated(results, made.files)
    else:
        with writing(results, "--results"):
            changed = write(results, made.files)
    for path in changed:
        print(f"{'outdated:' if args.check else 'wrote' if path in made.files else 'removed'} {path}")
    if not changed:
        print("up to date")
    elif args.check:
        print("run `python -m openbench leaderboard` and commit what it changes")
    if args.plots and not args.check:
        _draw(results, made.boards)
    return _notices(made.boards, made.unreadable) or (FAILED if args.check and changed else OK)


def _site(results: Path, folder: Path, *, reports: bool) -> int:
    from openbench.cli.commands.verify import command
    from openbench.report.site.write import write_site

    made, unreadable = write_site(results, folder, method_facts(), command if reports else None)
    print(f"wrote {len(made)} files — open {folder / 'index.html'}")
    return _notices((), unreadable)


def _show(args: Namespace) -> int:
    """Print tables of published results, or of a view of the boards; nothing is written."""
    unreadable: list[RecordError] = []
    form, view, boards = args.form or "console", args.view or ("overview" if args.of else _BOARD), []
    if args.published:
        found = published_boards(args.results / "reference", boards_in(RecordStore(args.results), unreadable.append))
        tables = [board.table for board in _of(found, args.benchmarks, "the published results")]
    else:
        boards = _chosen(_boards(args.results, view, args.metric, unreadable.append), args.benchmarks, args.where)
        tables = _tables(boards, view, args.of, args.metric, form)
    tables = _selected(tables, args.columns, form)
    if not any(table.rows for table in tables):
        print("nothing to show: the records have none of these numbers", file=sys.stderr)
    print_tables(without_repeats(tables) if form == "console" else tables, form)
    for header in sorted({header for board in boards for header in board.headers}) if args.explain else ():
        note(explained(header), form)
    return _notices(boards, unreadable)


def _draw(results: Path, boards: Sequence[Board]) -> None:
    from openbench.results.leaderboard.plots import draw_boards

    methods = {row.method for board in boards for row in board.rows}
    families = {name: facts.reads for name, facts in method_facts(methods).items()}
    with writing(results, "--results"):
        drawn, without = draw_boards(boards, results / FOLDER, families, ScoreStore(results / PUBLISHED))
    for path in drawn:
        print(f"drew {path}")
    if without:
        print(f"no picture, as there is no AUROC: {', '.join(without)}")


def _notices(found: Sequence[Board], unreadable: Sequence[OpenbenchError]) -> int:
    """List on stderr the records not ranked because they contradict themselves, and the files that are not records."""
    rows = {row.runs: row for board in found for row in board.unranked if any(run.problems for run in row.members)}
    for row in rows.values():
        for run in row.members:
            print(console(f"not ranked: {run.file}: {'; '.join(run.problems)}"), file=sys.stderr)
    return say_left_out(unreadable)


def _boards(results: Path, view: str, metric: str, on_error: OnError) -> list[Board]:
    """All boards, with the numbers of a view."""
    keep = matrix.needed(metric) if view in _MATRICES else needed(view) if view in ACROSS else board_keys
    found = boards_in(RecordStore(results), on_error, keep)
    return found + matrix.packed_boards(results, on_error, keep) if view == "trainings" else found


def _tables(found: Sequence[Board], view: str, of: Sequence[str], metric: str, form: str) -> list[Table]:
    """The tables of a view of boards."""
    if view in _MATRICES:
        made = matrix.matrices(found, view, of, metric)
        if form in ("csv", "json"):
            return [matrix.table_csv(made)]
        for one in made:
            note(console(f"{one.title}: {one.summary()} {one.details()}") + "\n", form)
        return [table for one in made for table in matrix.tables(one)]
    if view == COST:
        methods = {row.method for board in found for row in board.rows}
        return costs(found, {name: facts.fitted_on for name, facts in method_facts(methods).items()})
    if form in ("csv", "json"):
        return [raw(list(found)) if view == _BOARD else across_csv(found, view, of)]
    if view != _BOARD:
        return across(found, view, of)
    return [
        make(board)
        for board in found
        for make, rows in ((ranked_table, board.ranked), (unranked_table, board.unranked))
        if rows
    ]


def _selected(tables: Sequence[Table], names: Sequence[str], form: str) -> list[Table]:
    """The tables that have one of some columns, with these; for LaTeX without a choice, with so few that they fit.

    Raises:
        ConfigError: no table has a column of that name.
    """
    known = {_key(text): text for table in tables for column in table.columns for text in (column.name, column.title)}
    for name in names:
        if _key(name) not in known:
            titles = dict.fromkeys(re.sub(" [↑↓]", "", text) for text in known.values() if text)
            hint = did_you_mean(_key(name), known)
            raise ConfigError(f"--columns: '{name}' not found{hint} — available: {available(titles, name)}")
    if names:
        return [table.with_columns(places) for table in tables if (places := _places(table, names))]
    return [_narrow(table) for table in tables] if form == "latex" else list(tables)


def _narrow(table: Table) -> Table:
    """The table with so few columns that it fits a page."""
    cells = list(zip(*table.rows, strict=True))
    places = list(enumerate(table.columns))
    ranks = [at for at, column in places if column.title == "rank" and table.notes]
    texts = [at for at, c in places if c.kind == "text" and (c.title == "method" or len(set(cells[at])) > 1)]
    measured = [at for at, column in places if column.kind in ("percent", "number")]
    return table.with_columns([*ranks, *texts, *(_places(table, _PAPER) or measured[:_FEW])])


def _places(table: Table, names: Sequence[str]) -> list[int]:
    """Where the columns of some names are; a name that the table does not have is passed over."""
    known = {_key(text): at for at, column in enumerate(table.columns) for text in (column.title, column.name) if text}
    return [known[_key(name)] for name in names if _key(name) in known]


def _key(text: str) -> str:
    """A column's name as it is compared, e.g. `near_auroc` for `near AUROC ↑`."""
    return re.sub(r"[ _-]+", "_", re.sub(" [↑↓]", "", text)).casefold()


def _chosen(
    found: Sequence[Board], benchmarks: Sequence[str], where: Sequence[tuple[str, tuple[str, ...]]]
) -> list[Board]:
    """The boards of some benchmarks, with the rows that meet every condition.

    Raises:
        ConfigError: nothing is left.
    """
    boards = _of(found, benchmarks, "the records")
    for attribute, allowed in where:
        present = {str(getattr(row, attribute)) for board in boards for row in board.rows}
        if not any(_matches(value, allowed) for value in present):
            choices = available(sorted(present), allowed[0])
            raise ConfigError(f"--where {attribute}={','.join(allowed)}: no record — available: {choices}")
        boards = [_only(board, attribute, allowed) for board in boards]
    return [board for board in boards if board.rows]


def _of(found: Sequence[AnyBoard], benchmarks: Sequence[str], where: str) -> list[AnyBoard]:
    """The boards of some benchmarks; all without names.

    Raises:
        ConfigError: a name is that of none.
    """
    known = sorted({board.benchmark for board in found})
    for name in benchmarks:
        if not fnmatch.filter(known, name):
            raise ConfigError(not_found(f"--benchmark: '{name}' not found among {where}", name, known))
    return [board for board in found if not benchmarks or _matches(board.benchmark, benchmarks)]


def _only(board: Board, attribute: str, allowed: Sequence[str]) -> Board:
    ranked, unranked = (
        tuple(row for row in rows if _matches(str(getattr(row, attribute)), allowed))
        for rows in (board.ranked, board.unranked)
    )
    return replace(board, ranked=ranked, unranked=unranked)


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def class_overlap(benchmark: str, backbone: Mapping[str, Any]) -> str:
    """Return how many OOD classes were among the labels that a network learnt before, e.g. `12 of 160`, or `none`.

    Near and far sets count together; how many of them name no classes is said too. `not known` for weights that are
    not of openbench's list, such as your own checkpoint. Empty where the benchmark's lists cannot be read.

    Args:
        benchmark: its name, as records have it.
        backbone: the node of a network that came with weights, as records have it: its weights count, not its name.
    """
    return _overlap(benchmark, json.dumps(_weights_of(backbone)))


@lru_cache(maxsize=256)
def _overlap(benchmark: str, node: str) -> str:
    listed = _ood_classes(benchmark)
    classes = {canonical(name): name for own in listed for name in own}
    if not classes:
        return ""
    weights = _released().get(node)
    found = _UNKNOWN if weights is None else weights.seen(tuple(classes.values()))
    if found.startswith(_UNKNOWN):
        return _UNKNOWN
    nameless = sum(not own for own in listed)
    more = f" ({nameless} of {len(listed)} sets name no classes)" if nameless else ""
    return f"{found.partition(':')[0]}{more}"


def _weights_of(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """What tells the weights of a network, or those that its training started from."""
    start = backbone.get("start")
    node = public(start if isinstance(start, Mapping) else backbone)
    return {key: node[key] for key in _WEIGHTS if node.get(key) is not None}


@lru_cache(maxsize=1)
def _released() -> Mapping[str, Weights]:
    """The released weights, by what tells them."""
    folder = paths.config_dir() / "backbone"
    nodes = {name: read_yaml(folder / f"{name}.yaml") for name in released_weights()}
    return {json.dumps(_weights_of(node)): released_weights()[name] for name, node in nodes.items()}


@lru_cache(maxsize=64)
def _ood_classes(benchmark: str) -> tuple[tuple[str, ...], ...]:
    """The classes that each near and far set of a shipped benchmark names; some name none. Empty if unreadable.

    The yaml files are merged without Hydra, whose composition takes a third of a second; benchmarks whose sets are
    made by a collection or a draw are left out.
    """
    files = (shipped("benchmark", benchmark) if benchmark in names("benchmark") else None) or {}
    listings = []
    try:
        for group in GROUPS:
            prefix = f"benchmark.{group}."
            sets = {key.removeprefix(prefix): node for key, node in files.items() if key.startswith(prefix)}
            sets = merged(sets, files.get("benchmark", {}).get(group) or {})
            listings += [SetConfig.from_node(node, f"{prefix}{key}").listing() for key, node in sets.items()]
    except OpenbenchError:
        return ()
    return tuple(tuple(listing.class_names()) for listing in listings)
