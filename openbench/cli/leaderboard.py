"""`leaderboard`: bring the tables under results/leaderboard up to date with the records."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from openbench import paths
from openbench.cli.exits import BAD_INPUT, FAILED, OK
from openbench.errors import RecordError
from openbench.results.leaderboard import FOLDER, Generated, generate, outdated, write
from openbench.results.ranking import Board


def main(argv: list[str]) -> int:
    """Write the pages, or check them; exit code 2 if a file among the records is none."""
    arguments = _parser().parse_args(argv)
    results = arguments.results or paths.results_dir()
    if not results.is_dir():
        raise RecordError(
            f"results folder '{results}' not found — give one with --results DIR or OPENBENCH_RESULTS; "
            "`python -m openbench run` makes it"
        )
    made = generate(results)
    code = _check(results, made) if arguments.check else _write(results, made, plots=arguments.plots)
    return _notices(made.boards, made.unreadable) or code


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
        from openbench.results.plots import draw_all

        drawn, without = draw_all(made.boards, results / FOLDER)
        for path in drawn:
            print(f"drew {path}")
        if without:
            print(f"no picture, for lack of any AUROC: {', '.join(without)}")
    return OK


def _notices(found: Sequence[Board], unreadable: Sequence[RecordError]) -> int:
    """Say on stderr which records are out of competition for contradicting themselves, and which files are none."""
    rows = {row.runs: row for board in found for row in board.unranked if any(run.problems for run in row.members)}
    for row in rows.values():
        for run in row.members:
            place = f"{run.benchmark}/{run.backbone}/{run.method}/{run.run_id}.json"
            print(f"not ranked: {place}: {'; '.join(run.problems)}", file=sys.stderr)
    for error in unreadable:
        print(f"error: {error}", file=sys.stderr)
    if unreadable:
        several = (
            f"{len(unreadable)} files are not records and were" if unreadable[1:] else "1 file is not a record and was"
        )
        print(f"{several} left out", file=sys.stderr)
    return BAD_INPUT if unreadable else OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench leaderboard",
        description="Make the tables of results/leaderboard from the records; without new records nothing changes.",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder that holds records/ and reference/ (default: OPENBENCH_RESULTS, else ./results)",
    )
    parser.add_argument("--plots", action="store_true", help="also draw near against far AUROC of every benchmark")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something would change")
    return parser
