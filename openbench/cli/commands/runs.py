"""`report`, `compare`, `thresholds` and `risk`: finished runs, from their records and the scores kept of them."""

import base64
import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from openbench.cli import options
from openbench.cli.output import LeftOut, check_json, left_out, print_tables, write_json
from openbench.cli.process import writing
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, ConfigError, OpenbenchError
from openbench.paths import writable
from openbench.results.escape import csv_row
from openbench.results.records.store import RecordStore
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import ScoreStore, first_with
from openbench.results.tables.render import render
from openbench.storage.files import output, replacing, write_whole

if TYPE_CHECKING:
    from openbench.report.run_page import Sheet
    from openbench.results.comparisons.rejection import Curves
    from openbench.results.comparisons.thresholds import Scored

_SIDE = 192  # pixels of a picture's longer side, at most
_PICTURES = ("png", "svg", "pdf")
_SCORE_FILES = (".csv", ".parquet")
_REPORT = """\
The page holds what was run, its tables, and, where its scores are kept, ROC, precision and recall, score histograms,
error rates over the threshold, selective and conformal curves, and the images that were flagged and accepted first.

  python -m openbench report latest
  python -m openbench report 36e6c0dc2b0d35da --out knn.html --images 0
"""
_COMPARE = """\
Each run is compared with the first: by DeLong's paired test on the same images, for every set and the mean of each
group. Scores are read from the results folder, where `publish` puts them, or from the cache of the run.

  python -m openbench compare 36e6c0 0f1eaf
  python -m openbench compare 36e6c0 0f1eaf 2ffd38 --plots roc.png --images 10
"""
_THRESHOLDS = """\
Each group has a threshold of largest F1. The tables show how far it moves from group to group, and what F1 is lost
where a group must take the best of the other groups' thresholds, or all groups the same one. Every collection (the
cases of the re-benchmark) has tables of its own, with the paper's figures beside ours; GradNorm has both of its
variants, as the norm and divided by the number of classes, from the scores of either.

  python -m openbench thresholds rebench_case1 rebench_case2
  python -m openbench thresholds rebench_case3 --groups
  python -m openbench thresholds a_against_b.csv a_against_c.csv
"""
_RISK = """\
For each OOD set, ρ_max is the largest share of OOD that one of the methods accepts where it accepts 80 % of ID; the
selective risk of every method is then the least at that TPR and FPR. Beside it the paper's figures (table 2 of arXiv
2307.05199), on its benchmarks. A double score such as msp+knn has the best weight at every operating point, chosen on
the test data as in the paper; its honest counterpart is the method knn_msp, whose weight is chosen on validation.

  python -m openbench risk cifar10_rejection
  python -m openbench risk cifar10_rejection --methods msp,mls,odin,react,knn,vim --double msp+knn --double msp+vim
"""


@click.command(cls=options.Command, epilog=_REPORT)
@click.argument("run_id", metavar="RUN_ID")
@click.option("--out", type=options.FILE, metavar="FILE.html", help="the page (default: named by the run)")
@click.option("--images", type=int, default=12, metavar="N", help="images on each contact sheet; 0 for none")
@options.results
@options.cache
def report(run_id: str, out: Path | None, images: int, results: Path, cache: Path) -> int:
    """Write one run as an HTML page with its tables and pictures.

    RUN_ID is a record, the beginning of its id, or `latest`.
    """
    if out:
        writable(out.parent, "--out")  # before all that takes time
        if out.is_dir():
            raise ConfigError(f"--out: '{out}' is a folder — name the page, e.g. {out / 'run.html'}")
    with left_out() as lost:
        store = RecordStore(results)
        record, _ = store.look_up(run_id, lost.append)
    from openbench.cli.reproduce import command
    from openbench.report.run_page import run_page

    kept = first_with(record.run_id, _folders(results, cache))
    sets = kept.read_whole(record.run_id) if kept else []
    sheets, classes, why = _contact_sheets(record, sets, images)
    page = run_page(record, sets, sheets, classes, command(record))
    path = out or Path(f"{record.method['name']}-{record.benchmark['name']}-{record.run_id[:8]}.html")
    with writing(path, "--out"):
        write_whole(path, page.encode())
    if why:
        print(why)
    print(f"wrote {path}")
    return lost.code


@click.command(cls=options.Command, epilog=_COMPARE)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID…")
@click.option("--plots", type=options.FILE, metavar="FILE", help="draw the ROCs: .png, .svg or .pdf")
@click.option("--images", type=int, default=3, metavar="N", help="images of each set; 0 for none")
@click.option("--level", type=float, default=0.95, metavar="P", help="coverage of the intervals")
@options.table_format()
@options.results
@options.cache
def compare(
    *, run_ids: tuple[str, ...], plots: Path | None, images: int, level: float, form: str, results: Path, cache: Path
) -> int:
    """Compare runs on the same images: differences with intervals, configs, images.

    RUN_ID is a record, or the beginning of its id.
    """
    from openbench.results.comparisons.runs import compared, config_table, difference_table, disagreement_table

    if len(run_ids) < 2:
        raise ConfigError(f"compare: found {len(run_ids)} run — two or more are needed")
    suffix = plots.suffix.removeprefix(".").lower() if plots else ""
    if plots and suffix not in _PICTURES:
        raise ConfigError(f"--plots '{plots}' — allowed: a name that ends in .png, .svg or .pdf")
    store = RecordStore(results)
    with left_out() as lost:
        records = [store.look_up(run_id, lost.append)[0] for run_id in run_ids]
    if len({record.run_id for record in records}) < len(records):
        raise ConfigError("compare: the same run is named twice — name different runs")
    folders = _folders(results, cache)
    runs = compared([(record, _scores(record.run_id, folders)) for record in records])
    first, *others = runs
    tables = [difference_table(first, other, level) for other in others]
    tables.append(config_table(runs))
    if images:
        from openbench.api.result import names_of

        keys = names_of(first.record)[0]  # empty where the images are not here
        tables += [disagreement_table(first, other, images, keys) for other in others]
    print("\n".join(render(table, form) for table in tables if table.rows), end="")
    if plots is not None:
        from openbench.results.plots import roc, save

        figure = roc({run.name: run.scores for run in runs})
        with writing(plots, "--plots"), replacing(plots) as stream:
            save(figure, stream, suffix)
        print(f"drew {plots}")
    return lost.code


@click.command(cls=options.Command, epilog=_THRESHOLDS)
@click.argument("words", nargs=-1, required=True, metavar="NAME…")
@click.option("--groups", is_flag=True, help="also print a table of every method's groups")
@options.json_file
@options.table_format()
@options.results
@options.cache
def thresholds(
    *, words: tuple[str, ...], groups: bool, json: Path | None, form: str, results: Path, cache: Path
) -> int:
    """Compare the best thresholds of a method over groups of ID and OOD data.

    NAME is the beginning of benchmarks' names, or a file of scores for each group.
    """
    from openbench.results.comparisons.thresholds import group_table, scored_runs, summary_tables
    from openbench.results.tables.published import rebench_figures

    files = [Path(word) for word in words if word.endswith(_SCORE_FILES)]
    check_json(json, files)
    prefixes = [word for word in words if not word.endswith(_SCORE_FILES)]
    methods = [_of_files(files)] if files else []
    lost = LeftOut()
    if prefixes:
        scores = ScoreStore(cache / "scores")
        with left_out() as lost:
            methods += scored_runs(RecordStore(results).readable(lost.append), scores, prefixes, lost.append)
    tables = summary_tables(methods, rebench_figures(results / "reference"))
    tables += [group_table(method) for method in methods] if groups else []
    print_tables(tables, form)
    if json is not None:
        write_json({"methods": [_numbers(method) for method in methods]}, json)
    return lost.code


@click.command(cls=options.Command, epilog=_RISK)
@click.argument("benchmark", metavar="BENCHMARK")
@click.option("--methods", type=options.names, default="", metavar="NAME,…", help="which, in this order (default: all)")
@click.option("--tpr", type=float, default=0.8, metavar="RATE", help="share of ID accepted (default: 0.8)")
@click.option(
    "--double",
    multiple=True,
    metavar="RISK+OOD",
    help="also a double score of two of them at the best weight of every operating point; may be repeated",
)
@click.option("--curves", type=options.FILE, metavar="FILE", help="write ROC, PR and OSCR curves as CSV: x and y")
@options.json_file
@options.table_format()
@options.results
@options.cache
def risk(
    *,
    benchmark: str,
    methods: tuple[str, ...],
    tpr: float,
    double: tuple[str, ...],
    curves: Path | None,
    json: Path | None,
    form: str,
    results: Path,
    cache: Path,
) -> int:
    """Compare methods by their selective risk at a common TPR and FPR."""
    from openbench.metrics.curve import check_rate
    from openbench.results.comparisons.rejection import compare, contenders, rejection_tables
    from openbench.results.comparisons.rejection import curves as curves_of
    from openbench.results.tables.published import rejection_figures

    check_rate(tpr, "--tpr")
    doubles = [_parts(text) for text in double]
    scores = ScoreStore(cache / "scores")
    with left_out() as lost:
        records = RecordStore(results).readable(lost.append)
        found = contenders(records, scores, benchmark, list(methods), lost.append)
    figures = rejection_figures(results / "reference")
    published = {key[1:]: figure for key, figure in figures.items() if key[0] == benchmark}
    compared = {digest: compare(rows, tpr, doubles) for digest, rows in found.items()}
    tables = []
    for digest, comparisons in compared.items():
        version = f" ({digest[:8]})" if len(compared) > 1 else ""
        title, deviations = f"{benchmark}{version}", found[digest][0].deviations
        tables += rejection_tables(title, comparisons, published, deviations)
    print_tables(tables, form)
    if json is not None:
        write_json({digest: [asdict(row) for row in rows] for digest, rows in compared.items()}, json)
    if curves is not None:
        _write_curves({digest: curves_of(rows, doubles) for digest, rows in found.items()}, curves)
        print(f"written {curves}", file=sys.stderr)
    return lost.code


def _folders(results: Path, cache: Path) -> tuple[Path, Path]:
    """Where the scores of runs may be: published in the results folder, or kept in the cache."""
    return results / PUBLISHED, cache / "scores"


def _scores(run_id: str, folders: tuple[Path, ...]) -> "list[SetScores]":
    store = first_with(run_id, folders)
    if store is None:
        raise CacheError(
            f"scores of run {run_id} not found in {' or '.join(repr(str(folder)) for folder in folders)} — repeat the "
            "run to compute them, or give the cache that holds them: --cache DIR"
        )
    return store.read(run_id)


def _of_files(files: list[Path]) -> "Scored":
    """Files of scores, each a group, as `evaluate` reads them; the ID side is `id_test`, the OOD side near and far."""
    from openbench.results.comparisons.thresholds import Scored
    from openbench.results.scores.cells import read_sets

    groups = {}
    for file in files:
        sets = read_sets(file)
        sides = [[s.scores for s in sets if s.role in roles] for roles in (("id_test",), ("near", "far"))]
        if not all(sides):
            found = ", ".join(sorted({s.role for s in sets}))
            raise OpenbenchError(f"{file} — found the roles {found} — a group needs id_test, and near or far")
        groups[str(file.with_suffix(""))] = (np.concatenate(sides[0]), np.concatenate(sides[1]))
    return Scored("scores", "", groups)


def _numbers(method: "Scored") -> dict[str, object]:
    """Every number of a method."""
    from openbench.metrics.threshold import shared_thresholds

    about = {"case": method.case, "method": method.method, "about": method.about}
    return {**about, **asdict(shared_thresholds(method.groups))}


def _parts(text: str) -> tuple[str, str]:
    """The two methods of a double score, as `risk+ood`."""
    risk, plus, ood = text.partition("+")
    if not (risk and plus and ood) or "+" in ood:
        raise OpenbenchError(
            f"--double {text} — found {text!r} — allowed: two methods joined by '+', that which finds misclassified "
            "inputs first, e.g. msp+knn"
        )
    return risk, ood


def _write_curves(found: Mapping[str, "Iterable[Curves]"], path: Path) -> None:
    """Write the points of all curves, a row each."""
    from openbench.results.comparisons.rejection import curve_rows

    with writing(path, "--curves"), output(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("benchmark_digest", "ood", "method", "run", "chosen", "curve", "x", "y"))
        writer.writerows(csv_row((digest, *row)) for digest, each in found.items() for row in curve_rows(each))


def _contact_sheets(
    record: ResultRecord, sets: Sequence[SetScores], most: int
) -> "tuple[list[Sheet], tuple[str, ...], str]":
    """Return contact sheets, the names of the ID classes, and why there are none, empty if there are.

    The ID test images with the largest scores, and those of each OOD set with the smallest. Code that a record names
    and openbench does not ship is not run.

    Args:
        record: of the run.
        sets: its scores.
        most: images on each sheet.
    """
    from openbench.api.result import opened
    from openbench.report.run_page import Picture, Sheet

    if not sets or most < 1:
        return [], (), ""
    benchmark, why = opened(record)
    if benchmark is None:
        return [], (), f"no images: {why}"
    splits = {(str(split.role), split.name): split for split in benchmark.splits() if not split.unread}
    sheets = []
    for s in sets:
        split = splits.get((str(s.role), s.name))
        if split is None or len(split.keys) != len(s.scores) or str(s.role) not in ("id_test", "near", "far"):
            continue
        flagged = str(s.role) == "id_test"
        order = np.argsort(-s.scores if flagged else s.scores, kind="stable")[:most]
        title = "ID test flagged first" if flagged else f"{s.name} ({s.role}) accepted first"
        pictures = [
            Picture(_png(split.items[int(at)]), str(split.keys[at]), float(s.scores[at]), _class(s, int(at), benchmark))
            for at in order
        ]
        sheets.append(Sheet(title, tuple(pictures)))
    return sheets, tuple(benchmark.classes), ""


def _class(s: SetScores, at: int, benchmark: Any) -> str:
    """The predicted class, and the true one where it is another."""
    names = benchmark.classes
    predicted = None if s.predictions is None or s.predictions[at] < 0 else names[s.predictions[at]]
    true = None if s.labels is None or s.labels[at] < 0 else names[s.labels[at]]
    if predicted is None:
        return str(true or "")
    return f"{predicted} (is {true})" if true not in (None, predicted) else str(predicted)


def _png(item: Any) -> str:
    """An image as a data URI, its longer side at most `_SIDE` pixels."""
    from PIL import Image

    image = item if isinstance(item, Image.Image) else Image.fromarray(np.asarray(item))
    image = image.convert("RGB")
    image.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    image.save(stream, format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
