"""`report`: one run as a page that needs nothing else."""

import argparse
from pathlib import Path

from openbench import paths
from openbench.cli.kept_options import folders_of_scores
from openbench.cli.left_out import left_out
from openbench.errors import ConfigError, RecordError
from openbench.paths import writable
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import first_with
from openbench.storage.files import write_whole

_EPILOG = """\
The page holds what was run, its tables, and, where its scores are kept, ROC, precision and recall, score histograms,
error rates over the threshold, selective and conformal curves, and the images that were flagged and accepted first.

  python -m openbench report latest
  python -m openbench report 36e6c0dc2b0d35da --out knn.html --images 0
"""


def main(argv: list[str]) -> int:
    """Write the page of a record and return the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.out:
        writable(arguments.out.parent, "--out")  # before all that takes time
        if arguments.out.is_dir():
            raise ConfigError(
                f"--out: '{arguments.out}' is a folder — name the page, e.g. {arguments.out / 'run.html'}"
            )
    with left_out() as lost:
        store = RecordStore(arguments.results or paths.results_dir())
        record, _ = store.look_up(arguments.run_id, lost.append)
    from openbench.cli.contact_sheets import contact_sheets
    from openbench.cli.reproduce import command
    from openbench.report.run_page import run_page

    kept = first_with(record.run_id, folders_of_scores(arguments))
    sets = kept.read_whole(record.run_id) if kept else []
    sheets, classes, why = contact_sheets(record, sets, arguments.images)
    page = run_page(record, sets, sheets, classes, command(record) or "")
    path = arguments.out or Path(f"{record.method['name']}-{record.benchmark['name']}-{record.run_id[:8]}.html")
    try:
        write_whole(path, page.encode())
    except OSError as error:
        raise RecordError(f"'{path}' cannot be written — {error.strerror or error} — give another by --out") from error
    if why:
        print(why)
    print(f"wrote {path}")
    return lost.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench report",
        description="Write one run as an HTML page with its tables and pictures.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_id", metavar="RUN_ID", help="a record, the beginning of its id, or `latest`")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page (default: named by the run)")
    parser.add_argument("--images", type=int, default=12, metavar="N", help="images on each contact sheet; 0 for none")
    parser.add_argument("--results", type=Path, metavar="DIR", help="the results folder")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder that holds scores/")
    return parser
