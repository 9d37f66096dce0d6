"""`leaderboard`: bring the tables under results/leaderboard up to date with the records, or show them one by one."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from openbench import paths
from openbench.cli.left_out import say_left_out
from openbench.cli.process import FAILED, OK
from openbench.core.record import ResultRecord
from openbench.errors import ConfigError, OpenbenchError, RecordError, did_you_mean
from openbench.results.escape import console
from openbench.results.leaderboard.across import ACROSS, SETS, across, across_csv, needed, write_every_number
from openbench.results.leaderboard.index import indexed_runs
from openbench.results.leaderboard.pages import (
    FOLDER,
    Generated,
    generate,
    outdated,
    ranked_table,
    raw,
    unranked_table,
    write,
)
from openbench.results.leaderboard.ranking import Board, board_keys, boards_of
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import FORMATS, Table, render
from openbench.results.tables.views import explained, said_once

_BOARD = "board"
_ATTRIBUTES = ("method", "training", "augment", "outliers", "backbone", "tuned")
_EPILOG = f"""\
Without --view, --benchmark, --where or --format the pages are written; with one of them tables are printed instead.

  python -m openbench leaderboard
  python -m openbench leaderboard --benchmark cifar10 --where outliers=none --where 'training=cross_entropy,logitnorm'
  python -m openbench leaderboard --view selective --of near --format latex
  python -m openbench leaderboard --view overview --format csv
  python -m openbench leaderboard --every-number numbers.csv
  python -m openbench leaderboard --site site

--of takes near, far, pooled_near, pooled_far, the names of sets, or `{SETS}` for each of them.
"""


def main(argv: list[str]) -> int:
    """Write the pages, check them, or print tables; exit code 2 if a file among the records is not a record."""
    arguments = _parser().parse_args(argv)
    results = arguments.results or paths.results_dir()
    if not results.is_dir():
        raise RecordError(
            f"results folder '{results}' not found — give one with --results DIR or OPENBENCH_RESULTS; "
            "`python -m openbench run` makes it"
        )
    if arguments.reports and arguments.site is None:
        raise ConfigError("--reports — found it without --site — the pages of runs are part of the site: --site DIR")
    if arguments.site is not None:
        return _site(results, arguments.site, reports=arguments.reports)
    if arguments.every_number is not None:
        return _every_number(results, arguments.every_number)
    if any((arguments.view, arguments.benchmark, arguments.where, arguments.format, arguments.of)):
        return _show(results, arguments)
    from openbench.cli.class_overlap import class_overlap

    made = generate(results, class_overlap)
    code = _check(results, made) if arguments.check else _write(results, made, plots=arguments.plots)
    return _notices(made.boards, made.unreadable) or code


def _site(results: Path, folder: Path, *, reports: bool) -> int:
    from openbench.cli.registry import method_facts
    from openbench.report.site.write import write_site

    made, unreadable = write_site(results, folder, method_facts(), _page_of if reports else None)
    print(f"wrote {len(made)} files — open {folder / 'index.html'}")
    return _notices((), unreadable)


def _page_of(record: ResultRecord, scores: ScoreStore) -> str:
    """The page of a run, without its images."""
    from openbench.cli.reproduce import command
    from openbench.report.run_page import run_page

    return run_page(record, scores.read_whole(record.run_id), command=command(record) or "")


def _check(results: Path, made: Generated) -> int:
    stale = outdated(results, made.files)
    for path in stale:
        print(f"outdated: {path}")
    print("up to date" if not stale else "run `python -m openbench leaderboard` and commit what it changes")
    return FAILED if stale else OK


def _write(results: Path, made: Generated, *, plots: bool) -> int:
    try:
        changed = write(results, made.files)
    except OSError as error:
        raise RecordError(
            f"leaderboard cannot be written to '{results}' — {error.strerror or error} — choose another folder: "
            "--results DIR or OPENBENCH_RESULTS"
        ) from error
    for path in changed:
        print(f"{'wrote' if path in made.files else 'removed'} {path}")
    if not changed:
        print("up to date")
    if plots:
        from openbench.cli.registry import method_facts
        from openbench.results.leaderboard.plots import draw_all
        from openbench.results.scores.recompute import PUBLISHED

        families = {name: facts.reads for name, facts in method_facts().items()}
        drawn, without = draw_all(made.boards, results / FOLDER, families, ScoreStore(results / PUBLISHED))
        for path in drawn:
            print(f"drew {path}")
        if without:
            print(f"no picture, as there is no AUROC: {', '.join(without)}")
    return OK


def _notices(found: Sequence[Board], unreadable: Sequence[OpenbenchError]) -> int:
    """List on stderr the records not ranked because they contradict themselves, and the files that are not records."""
    rows = {row.runs: row for board in found for row in board.unranked if any(run.problems for run in row.members)}
    for row in rows.values():
        for run in row.members:
            place = f"{run.benchmark}/{run.backbone}/{run.method}/{run.run_id}.json"
            print(console(f"not ranked: {place}: {'; '.join(run.problems)}"), file=sys.stderr)
    return say_left_out(unreadable)


def _every_number(results: Path, path: Path) -> int:
    store, unreadable = RecordStore(results), dict[str, RecordError]()
    rows, numbers = write_every_number(lambda: store.readable(lambda e: unreadable.update({str(e): e})), path)
    print(f"wrote {path}: {rows} records, {numbers} numbers of each at most")
    return _notices((), list(unreadable.values()))


def _show(results: Path, arguments: argparse.Namespace) -> int:
    view, form = arguments.view or _BOARD, arguments.format or "console"
    unreadable: list[RecordError] = []
    keep = board_keys if view == _BOARD else needed(view)
    every = boards_of(indexed_runs(RecordStore(results), (keep, board_keys), unreadable.append))
    found = _chosen(every, arguments.benchmark, arguments.where)
    if form == "csv":
        tables = [raw(found) if view == _BOARD else across_csv(found, view, arguments.of)]
    elif view == _BOARD:
        tables = [table for board in found for table in _board_tables(board)]
    else:
        tables = across(found, view, arguments.of)
    if not tables or not any(table.rows for table in tables):
        print(f"view '{view}' is empty: the records have none of its numbers", file=sys.stderr)
    if form == "console":
        tables = said_once(tables)
    print("\n".join(render(table, form) for table in tables), end="")
    if arguments.explain:
        for header in sorted({header for board in found for header in board.headers}):
            print(explained(header), file=sys.stderr if form == "csv" else sys.stdout)
    return _notices(found, unreadable)


def _board_tables(board: Board) -> list[Table]:
    ranked = [ranked_table(board)] if board.ranked else []
    if not board.unranked:
        return ranked
    table, reasons = unranked_table(board)
    return [*ranked, replace(table, notes=tuple(f"[{mark}] {reason}" for reason, mark in reasons.items()))]


def _chosen(
    found: Sequence[Board], benchmarks: Sequence[str], where: Sequence[tuple[str, tuple[str, ...]]]
) -> list[Board]:
    """The boards of some benchmarks, with the rows that meet every condition.

    Raises:
        ConfigError: nothing is left.
    """
    kept = [board for board in found if not benchmarks or _matches(board.benchmark, benchmarks)]
    if not kept:
        names = sorted({board.benchmark for board in found})
        hint = did_you_mean(benchmarks[0], names) if benchmarks else ""
        raise ConfigError(
            f"--benchmark: '{', '.join(benchmarks)}' not found among the records{hint} — available: "
            f"{', '.join(names) or 'none'}"
        )
    for attribute, allowed in where:
        present = {str(getattr(row, attribute)) for board in kept for row in (*board.ranked, *board.unranked)}
        if not any(_matches(value, allowed) for value in present):
            raise ConfigError(
                f"--where {attribute}={','.join(allowed)}: no record — available: {', '.join(sorted(present))}"
            )
        kept = [_only(board, attribute, allowed) for board in kept]
    return [board for board in kept if board.ranked or board.unranked]


def _only(board: Board, attribute: str, allowed: Sequence[str]) -> Board:
    ranked, unranked = (
        tuple(row for row in rows if _matches(str(getattr(row, attribute)), allowed))
        for rows in (board.ranked, board.unranked)
    )
    return replace(board, ranked=ranked, unranked=unranked)


def _matches(value: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(value, pattern) for pattern in patterns)


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _condition(text: str) -> tuple[str, tuple[str, ...]]:
    attribute, equals, values = text.partition("=")
    if attribute not in _ATTRIBUTES or not equals or not _words(values):
        raise argparse.ArgumentTypeError(
            f"found {text!r}{did_you_mean(attribute, _ATTRIBUTES)} — allowed: KEY=VALUE,…, where KEY is one of "
            f"{', '.join(_ATTRIBUTES)} and VALUE may hold *"
        )
    return attribute, _words(values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench leaderboard",
        description="Make the tables of results/leaderboard from the records; without new records nothing changes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder that holds records/ and reference/ (default: OPENBENCH_RESULTS, else ./results)",
    )
    parser.add_argument("--plots", action="store_true", help="also draw near against far AUROC of every benchmark")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something would change")
    parser.add_argument("--site", type=Path, metavar="DIR", help="write a page to sort, filter and compare; no server")
    parser.add_argument(
        "--reports", action="store_true", help="with --site: also the page of every run with published scores"
    )
    parser.add_argument("--every-number", type=Path, metavar="FILE.csv", help="write every number of every record")
    show = parser.add_argument_group("printing tables instead of writing pages")
    show.add_argument("--view", choices=(_BOARD, *ACROSS), help=f"which numbers (default: {_BOARD}, the ranking)")
    show.add_argument("--benchmark", type=_words, default=(), metavar="NAME,…", help="only these; may contain *")
    show.add_argument(
        "--where", type=_condition, action="append", default=[], metavar="KEY=VALUE,…", help=", ".join(_ATTRIBUTES)
    )
    show.add_argument("--of", type=_words, default=(), metavar="SET,…", help="groups or sets (default: near,far)")
    show.add_argument("--format", choices=list(FORMATS), help="how tables are written (default: console)")
    show.add_argument("--explain", action="store_true", help="also print every convention that the numbers depend on")
    return parser
