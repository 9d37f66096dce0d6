"""`leaderboard`: bring the tables under results/leaderboard up to date with the records."""

import argparse
from pathlib import Path

from openbench import paths
from openbench.cli.exits import FAILED, OK
from openbench.errors import RecordError
from openbench.results.leaderboard import generate, outdated, write


def main(argv: list[str]) -> int:
    """Regenerate the leaderboard, or with `--check` only say what would change (exit code 1 if anything)."""
    arguments = _parser().parse_args(argv)
    results = arguments.results or paths.results_dir()
    if not results.is_dir():
        raise RecordError(
            f"results folder '{results}' not found — give one with --results DIR or OPENBENCH_RESULTS; "
            "`python -m openbench run` makes it"
        )
    files = generate(results)
    if arguments.check:
        stale = outdated(results, files)
        for path in stale:
            print(f"outdated: {path}")
        print("up to date" if not stale else "run `python -m openbench leaderboard` and commit what it changes")
        return FAILED if stale else OK
    try:
        changed = write(results, files)
    except OSError as error:
        raise RecordError(
            f"leaderboard cannot be written to '{results}' — {error.strerror or error} — choose another folder: "
            "--results DIR or OPENBENCH_RESULTS"
        ) from error
    for path in changed:
        print(f"{'wrote' if path in files else 'removed'} {path}")
    if not changed:
        print("up to date")
    return OK


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
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if something would change")
    return parser
