"""`leaderboard`: bring the tables under results/leaderboard up to date with the records."""

import argparse
from pathlib import Path

from openbench import paths
from openbench.cli.exits import FAILED, OK
from openbench.errors import RecordError
from openbench.results.leaderboard import FOLDER, generate, outdated, write
from openbench.results.store import RecordStore


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
    if arguments.plots:
        for path in draw(results):
            print(f"drew {path}")
    return OK


def draw(results: Path) -> list[Path]:
    """Draw near against far AUROC of every benchmark and ID side, beside the tables, and return the files."""
    from openbench.results.plots import near_far
    from openbench.results.ranking import boards

    drawn: dict[Path, Path] = {}
    for board in boards(RecordStore(results)):
        side = "_full_spectrum" if board.full_spectrum else ""
        path = results / FOLDER / f"{board.benchmark}{side}.png"
        if path in drawn:  # another version of the benchmark: its digest tells the pictures apart
            path = path.with_name(f"{path.stem}_{board.digest}.png")
        if any("near auroc" in row.values and "far auroc" in row.values for row in (*board.ranked, *board.unranked)):
            drawn[path] = near_far(board, path)
    return list(drawn)


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
