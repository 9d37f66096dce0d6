"""`thresholds`: how far a method's best threshold moves over several groups of ID and OOD data."""

import argparse
from dataclasses import asdict
from pathlib import Path

import numpy as np

from openbench import paths
from openbench.cli.json_file import check_json, write_json
from openbench.cli.kept_options import add_kept_options
from openbench.cli.left_out import LeftOut, left_out
from openbench.cli.score_file import read_sets
from openbench.cli.tables import print_tables
from openbench.errors import OpenbenchError
from openbench.metrics.threshold import shared_thresholds
from openbench.results.comparisons.thresholds import Scored, group_table, scored_runs, summary_tables
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.published import rebench_figures

_EPILOG = """\
Each group has a threshold of largest F1. The tables show how far it moves from group to group, and what F1 is lost
where a group must take the best of the other groups' thresholds, or all groups the same one. Every collection (the
cases of the re-benchmark) has tables of its own, with the paper's figures beside ours; GradNorm has both of its
variants, as the norm and divided by the number of classes, from the scores of either.

  python -m openbench thresholds rebench_case1 rebench_case2
  python -m openbench thresholds rebench_case3 --groups
  python -m openbench thresholds a_against_b.csv a_against_c.csv
"""
_FILES = (".csv", ".parquet")


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    files = [Path(word) for word in arguments.words if word.endswith(_FILES)]
    check_json(arguments.json, files)
    prefixes = [word for word in arguments.words if not word.endswith(_FILES)]
    methods = [_of_files(files)] if files else []
    results = arguments.results or paths.results_dir()
    lost = LeftOut()
    if prefixes:
        scores = ScoreStore((arguments.cache or paths.cache_dir()) / "scores")
        with left_out() as lost:
            methods += scored_runs(RecordStore(results).readable(lost.append), scores, prefixes, lost.append)
    tables = summary_tables(methods, rebench_figures(results / "reference"))
    tables += [group_table(method) for method in methods] if arguments.groups else []
    print_tables(tables, arguments.format)
    if arguments.json is not None:
        write_json({"methods": [_numbers(method) for method in methods]}, arguments.json)
    return lost.code


def _of_files(files: list[Path]) -> Scored:
    """Files of scores, each a group, as `evaluate` reads them; the ID side is `id_test`, the OOD side near and far."""
    groups = {}
    for file in files:
        sets = read_sets(file)
        sides = [[s.scores for s in sets if s.role in roles] for roles in (("id_test",), ("near", "far"))]
        if not all(sides):
            found = ", ".join(sorted({s.role for s in sets}))
            raise OpenbenchError(f"{file} — found the roles {found} — a group needs id_test, and near or far")
        groups[str(file.with_suffix(""))] = (np.concatenate(sides[0]), np.concatenate(sides[1]))
    return Scored("scores", "", groups)


def _numbers(method: Scored) -> dict[str, object]:
    """Every number of a method."""
    about = {"case": method.case, "method": method.method, "about": method.about}
    return {**about, **asdict(shared_thresholds(method.groups))}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench thresholds",
        description="Compare the best thresholds of a method over groups of ID and OOD data.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="+", metavar="NAME", help="beginning of benchmarks' names, or files of scores, one per group"
    )
    parser.add_argument("--groups", action="store_true", help="also print a table of every method's groups")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number")
    add_kept_options(parser)
    return parser
