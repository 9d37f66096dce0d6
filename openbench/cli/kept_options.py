"""The options of commands that read records and kept scores."""

import argparse
from pathlib import Path

from openbench import paths
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.tables.render import FORMATS


def add_kept_options(parser: argparse.ArgumentParser) -> None:
    """Add --format, --results and --cache: how tables are written, where records are, and where scores are."""
    parser.add_argument("--format", choices=FORMATS, default="console", help="how tables are written")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="folder that holds records/ and reference/ (default: OPENBENCH_RESULTS, ./results)",
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        help="folder that holds scores/ (default: OPENBENCH_CACHE, ~/.cache/openbench)",
    )


def folders_of_scores(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Return where the scores of runs may be: published in the results folder, or kept in the cache."""
    results, cache = arguments.results or paths.results_dir(), arguments.cache or paths.cache_dir()
    return results / PUBLISHED, cache / "scores"
