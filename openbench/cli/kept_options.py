"""The options of commands that read records and kept scores."""

import argparse
from pathlib import Path

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
