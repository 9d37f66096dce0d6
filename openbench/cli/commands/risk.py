"""`risk`: methods compared as the reject-option paper does, from the kept scores of their runs."""

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from openbench import paths
from openbench.cli.json_file import write_json
from openbench.cli.kept_options import add_kept_options
from openbench.cli.left_out import left_out
from openbench.cli.tables import print_tables
from openbench.errors import OpenbenchError
from openbench.metrics.curve import check_rate
from openbench.results.comparisons.rejection import Curves, compare, contenders, curve_rows, curves, rejection_tables
from openbench.results.escape import csv_row
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.published import rejection_figures
from openbench.storage.files import output

_EPILOG = """\
For each OOD set, ρ_max is the largest share of OOD that one of the methods accepts where it accepts 80 % of ID; the
selective risk of every method is then the least at that TPR and FPR. Beside it the paper's figures (table 2 of arXiv
2307.05199), on its benchmarks. A double score such as msp+knn has the best weight at every operating point, chosen on
the test data as in the paper; its honest counterpart is the method knn_msp, whose weight is chosen on validation.

  python -m openbench risk cifar10_rejection
  python -m openbench risk cifar10_rejection --methods msp,mls,odin,react,knn,vim --double msp+knn --double msp+vim
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    tpr = check_rate(arguments.tpr, "--tpr")
    doubles = [_parts(text) for text in arguments.double]
    results = arguments.results or paths.results_dir()
    scores = ScoreStore((arguments.cache or paths.cache_dir()) / "scores")
    methods = [name for name in arguments.methods.split(",") if name]
    with left_out() as lost:
        records = RecordStore(results).readable(lost.append)
        found = contenders(records, scores, arguments.benchmark, methods, lost.append)
    figures = rejection_figures(results / "reference")
    published = {key[1:]: figure for key, figure in figures.items() if key[0] == arguments.benchmark}
    compared = {digest: compare(rows, tpr, doubles) for digest, rows in found.items()}
    tables = []
    for digest, comparisons in compared.items():
        version = f" ({digest[:8]})" if len(compared) > 1 else ""
        title, deviations = f"{arguments.benchmark}{version}", found[digest][0].deviations
        tables += rejection_tables(title, comparisons, published, deviations)
    print_tables(tables, arguments.format)
    if arguments.json is not None:
        write_json({digest: [asdict(row) for row in rows] for digest, rows in compared.items()}, arguments.json)
    if arguments.curves is not None:
        _write_curves({digest: curves(rows, doubles) for digest, rows in found.items()}, arguments.curves)
        print(f"written {arguments.curves}", file=sys.stderr)
    return lost.code


def _parts(text: str) -> tuple[str, str]:
    """The two methods of a double score, as `risk+ood`."""
    risk, plus, ood = text.partition("+")
    if not (risk and plus and ood) or "+" in ood:
        raise OpenbenchError(
            f"--double {text} — found {text!r} — allowed: two methods joined by '+', that which finds misclassified "
            "inputs first, e.g. msp+knn"
        )
    return risk, ood


def _write_curves(found: Mapping[str, Iterable[Curves]], path: Path) -> None:
    """Write the points of all curves, a row each.

    Raises:
        OpenbenchError: the file cannot be written.
    """
    try:
        with output(path) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(("benchmark_digest", "ood", "method", "run", "chosen", "curve", "x", "y"))
            writer.writerows(csv_row((digest, *row)) for digest, each in found.items() for row in curve_rows(each))
    except OSError as error:
        raise OpenbenchError(f"--curves {path} cannot be written — {error.strerror} — choose another file") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench risk",
        description="Compare methods by their selective risk at a common TPR and FPR.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", help="name of a benchmark with records")
    parser.add_argument(
        "--methods", default="", metavar="A,B", help="which methods to compare, in this order (default: all)"
    )
    parser.add_argument("--tpr", type=float, default=0.8, metavar="RATE", help="share of ID accepted (default: 0.8)")
    parser.add_argument(
        "--double",
        action="append",
        default=[],
        metavar="RISK+OOD",
        help="also a double score of two of them at the best weight of every operating point; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    parser.add_argument(
        "--curves", type=Path, metavar="FILE", help="write ROC, precision-recall and OSCR curves as CSV: x and y"
    )
    add_kept_options(parser)
    return parser
