"""`compare`: runs on the same images beside each other."""

import argparse
from pathlib import Path

from openbench import paths
from openbench.cli.kept_options import folders_of_scores
from openbench.cli.left_out import left_out
from openbench.cli.process import OK
from openbench.core.scores import SetScores
from openbench.errors import CacheError, ConfigError, RecordError
from openbench.results.comparisons.runs import compared, config_table, difference_table, disagreement_table
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import first_with
from openbench.results.tables.render import FORMATS, render
from openbench.storage.files import replacing

_FORMS = ("png", "svg", "pdf")
_EPILOG = """\
Each run is compared with the first: by DeLong's paired test on the same images, for every set and the mean of each
group. Scores are read from the results folder, where `publish` puts them, or from the cache of the run.

  python -m openbench compare 36e6c0 0f1eaf
  python -m openbench compare 36e6c0 0f1eaf 2ffd38 --plots roc.png --images 10
"""


def main(argv: list[str]) -> int:
    """Print the comparison of the named runs and return the exit code."""
    arguments = _parser().parse_args(argv)
    if len(arguments.run_ids) < 2:
        raise ConfigError(f"compare: found {len(arguments.run_ids)} run — two or more are needed")
    form = None if arguments.plots is None else arguments.plots.suffix.removeprefix(".").lower()
    if form not in (None, *_FORMS):
        raise ConfigError(f"--plots '{arguments.plots}' — allowed: a name that ends in .png, .svg or .pdf")
    store = RecordStore(arguments.results or paths.results_dir())
    with left_out() as lost:
        records = [store.look_up(run_id, lost.append)[0] for run_id in arguments.run_ids]
    if len({record.run_id for record in records}) < len(records):
        raise ConfigError("compare: the same run is named twice — name different runs")
    folders = folders_of_scores(arguments)
    runs = compared([(record, _scores(record.run_id, folders)) for record in records])
    first, *others = runs
    tables = [difference_table(first, other, arguments.level) for other in others]
    tables.append(config_table(runs))
    if arguments.images:
        from openbench.cli.contact_sheets import keys_of

        keys = keys_of(first.record)
        tables += [disagreement_table(first, other, arguments.images, keys) for other in others]
    print("\n".join(render(table, arguments.format) for table in tables if table.rows), end="")
    if arguments.plots is not None:
        _draw({run.name: run.scores for run in runs}, arguments.plots)
        print(f"drew {arguments.plots}")
    return lost.code or OK


def _scores(run_id: str, folders: tuple[Path, ...]) -> list[SetScores]:
    store = first_with(run_id, folders)
    if store is None:
        raise CacheError(
            f"scores of run {run_id} not found in {' or '.join(repr(str(folder)) for folder in folders)} — repeat the "
            "run to compute them, or give the cache that holds them: --cache DIR"
        )
    return store.read(run_id)


def _draw(runs: dict[str, tuple[SetScores, ...]], path: Path) -> None:
    from openbench.report.figures import roc_of_runs
    from openbench.report.style import save

    figure = roc_of_runs(runs)
    try:
        with replacing(path) as stream:
            save(figure, stream, path.suffix.removeprefix(".").lower())
    except OSError as error:
        raise RecordError(f"'{path}' cannot be written — {error.strerror or error} — give another name") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench compare",
        description="Compare runs on the same images: differences with intervals, configs, images.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_ids", nargs="+", metavar="RUN_ID", help="records, or the beginnings of their ids")
    parser.add_argument("--plots", type=Path, metavar="FILE", help="draw the ROCs: .png, .svg or .pdf")
    parser.add_argument("--images", type=int, default=3, metavar="N", help="images of each set; 0 for none")
    parser.add_argument("--level", type=float, default=0.95, metavar="P", help="coverage of the intervals")
    parser.add_argument("--format", choices=FORMATS, default="console", help="how tables are written")
    parser.add_argument("--results", type=Path, metavar="DIR", help="the results folder")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder that holds scores/")
    return parser
