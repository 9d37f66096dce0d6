"""`report`, `compare`, `thresholds` and `risk`: finished runs, from their records and stored scores."""

import base64
import io
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from openbench.api.result import names_of, opened
from openbench.cli import options
from openbench.cli.output import left_out, picture_format, print_tables, write_json
from openbench.cli.process import OK, writing
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, ConfigError, OpenbenchError, check_choice, did_you_mean
from openbench.metrics.curve import check_rate
from openbench.results.comparisons.rejection import contenders, rejection_tables
from openbench.results.comparisons.thresholds import GroupedScores, group_table, scored_runs, summary_tables
from openbench.results.escape import console
from openbench.results.records.settings import given_of, is_per_set
from openbench.results.records.store import RecordStore
from openbench.results.scores.formats import read_sets
from openbench.results.scores.stored import PUBLISHED, ScoreStore, first_with
from openbench.results.tables.published import rebench_figures, rejection_figures
from openbench.storage.files import write_whole
from openbench.storage.yaml_file import parse_yaml

if TYPE_CHECKING:
    from openbench.report.run_page import Sheet

_SIDE = 192  # pixels of a picture's longer side, at most
_SCORE_FILES = (".csv", ".parquet")


@click.command(cls=options.Command)
@click.argument("run_id", metavar="RUN_ID")
@options.file_option("--out", "FILE.html", "the page (default: named after the run)")
@click.option(
    "--images", type=click.IntRange(0), default=12, metavar="N", help="images on each contact sheet; 0 for none"
)
@options.results
@options.cache
def report(args: Namespace) -> int:
    """Write one run as an HTML page with its tables and pictures.

    RUN_ID is a record, the beginning of its id, or `latest`. The page holds the run's settings and tables and, if its
    scores are stored, ROC and precision-recall curves, histograms, error rates over the threshold, selective and
    conformal curves, and the images that were flagged and accepted first.

    Examples:
      python -m openbench report latest
      python -m openbench report 0f1eafcfb5ce08fb --out knn.html --images 0
    """
    from openbench.cli.commands.verify import command
    from openbench.report.run_page import run_page

    if args.out is not None and args.out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--out '{args.out}' — allowed: a name that ends in .html")
    record, _ = RecordStore(args.results).look_up(args.run_id)
    stored = first_with(record.run_id, _folders(args))
    sets = stored.read_whole(record.run_id) if stored else []
    sheets, classes, why = _contact_sheets(record, sets, args.images)
    path = args.out or Path(f"{record.method['name']}-{record.benchmark['name']}-{record.run_id[:8]}.html")
    with writing(path, "--out"):
        write_whole(path, run_page(record, sets, sheets, classes, command(record)).encode())
    if why:
        print(why)
    print(f"wrote {path}")
    return OK


@click.command(cls=options.Command)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID…")
@options.file_option("--plots", "FILE", "draw the ROCs: .png, .svg or .pdf")
@click.option("--images", type=click.IntRange(0), default=3, metavar="N", help="images of each set; 0 for none")
@click.option("--level", type=float, default=0.95, metavar="P", help="coverage of the intervals")
@options.table_format()
@options.results
@options.cache
def compare(args: Namespace) -> int:
    """Compare runs on the same images: differences with intervals, configs, images.

    RUN_ID is a record, or the beginning of its id. Each run is compared with the first by DeLong's paired test on the
    same images, for every set and the mean of each group. Scores are read from the results folder (see `publish`), else
    from the cache.

    Examples:
      python -m openbench compare e57cb0 0f1eaf
      python -m openbench compare e57cb0 0f1eaf 2ffd38 --plots roc.png --images 10
    """
    from openbench.results.comparisons.runs import compared, config_table, difference_table, disagreement_table

    if len(args.run_ids) < 2:
        raise ConfigError(f"compare: found {len(args.run_ids)} run — two or more are needed")
    picture = picture_format(args.plots, "--plots")
    store = RecordStore(args.results)
    records = [store.look_up(run_id)[0] for run_id in args.run_ids]
    if len({record.run_id for record in records}) < len(records):
        raise ConfigError("compare: the same run is named twice — name different runs")
    if per_set := next((record.run_id for record in records if is_per_set(record)), None):
        raise ConfigError(f"compare: each OOD set of run {per_set} has its own ID scores — name runs of another `tune`")
    runs = compared([(record, _scores(record.run_id, _folders(args))) for record in records])
    first, *others = runs
    tables = [difference_table(first, other, args.level) for other in others]
    tables.append(config_table([run for run in runs if not given_of(run.record)]))
    if args.images:
        keys = names_of(first.record)[0]  # empty where the images are not here
        ordered = [other for other in others if first.ordered and other.ordered]
        tables += [disagreement_table(first, other, args.images, keys) for other in ordered]
    print_tables([table for table in tables if table.rows], args.form)
    if args.plots is not None:
        from openbench.results.plots import roc, saved

        figure = roc({run.name: run.scores for run in runs})
        with writing(args.plots, "--plots"):
            write_whole(args.plots, saved(figure, picture))
        print(f"drew {args.plots}", file=sys.stderr)
    return OK


@click.command(cls=options.Command)
@click.argument("words", nargs=-1, required=True, metavar="NAME…")
@click.option("--groups", is_flag=True, help="also print a table of every method's groups")
@options.table_format()
@options.results
@options.cache
def thresholds(args: Namespace) -> int:
    """Compare the best thresholds of a method over groups of ID and OOD data.

    NAME is the beginning of benchmarks' names, or a file of scores for each group. The threshold of a group is the one
    of largest F1. The tables show how far it moves between groups, and what F1 is lost if a group takes the best
    threshold of the others, or if all groups share one. Every collection (the cases of the re-benchmark) has its own
    tables, with the paper's figures. GradNorm has both of its variants: the norm, and the norm divided by the number of
    classes.

    Examples:
      python -m openbench thresholds rebench_case1 rebench_case2
      python -m openbench thresholds rebench_case3 --groups
      python -m openbench thresholds a_against_b.csv a_against_c.csv
    """
    files = [Path(word) for word in args.words if word.endswith(_SCORE_FILES)]
    prefixes = [word for word in args.words if not word.endswith(_SCORE_FILES)]
    methods = [_of_files(files)] if files else []
    with left_out() as lost:
        if prefixes:
            records = RecordStore(args.results).readable(lost.append)
            methods += scored_runs(records, ScoreStore(args.cache / "scores"), prefixes, lost.append)
    tables = summary_tables(methods, rebench_figures(args.results / "reference"))
    tables += [group_table(method) for method in methods] if args.groups else []
    print_tables(tables, args.form)
    return lost.code


@click.command(cls=options.Command)
@click.argument("benchmark", metavar="BENCHMARK")
@click.option("--methods", type=options.names, default="", metavar="NAME,…", help="which, in this order (default: all)")
@click.option("--tpr", type=float, default=0.8, metavar="RATE", help="share of ID accepted (default: 0.8)")
@click.option("--double", multiple=True, metavar="RISK+OOD", help="a double score of two methods; may be repeated")
@options.table_format()
@options.results
@options.cache
def risk(args: Namespace) -> int:
    """Compare methods by their selective risk at a common TPR and FPR.

    For each OOD set, ρ_max is the largest share of OOD that one of the methods accepts when it accepts 80 % of ID. The
    selective risk of every method is then the least at that TPR and FPR. On the benchmarks of the paper (table 2 of
    arXiv 2307.05199) its figures are shown too. A double score such as msp+knn has the best weight at every operating
    point, chosen on the test data as in the paper; the method knn_msp chooses its weight on validation data.

    Examples:
      python -m openbench risk cifar10_rejection
      python -m openbench risk cifar10_rejection --methods msp,mls,odin,knn,vim --double msp+knn --double msp+vim
    """
    check_rate(args.tpr, "--tpr")
    doubles = [_double(text) for text in args.double]
    scores = ScoreStore(args.cache / "scores")
    with left_out() as lost:
        records = RecordStore(args.results).readable(lost.append)
        contending = contenders(records, scores, args.benchmark, list(args.methods), lost.append)
    figures = rejection_figures(args.results / "reference")
    tables = []
    for digest, rows in contending.items():
        version = f" ({digest[:8]})" if len(contending) > 1 else ""
        tables += rejection_tables(f"{args.benchmark}{version}", rows, args.tpr, doubles, figures)
    print_tables(tables, args.form)
    return lost.code


def _folders(args: Namespace) -> tuple[Path, Path]:
    """Where the scores of runs are: those that were published, then the cache."""
    return args.results / PUBLISHED, args.cache / "scores"


def _scores(run_id: str, folders: tuple[Path, ...]) -> list[SetScores]:
    store = first_with(run_id, folders)
    if store is None:
        raise CacheError(
            f"scores of run {run_id} not found in {' or '.join(repr(str(folder)) for folder in folders)} — repeat the "
            "run, or name the cache that has them: --cache DIR"
        )
    return store.read(run_id)


def _of_files(files: list[Path]) -> GroupedScores:
    """Files of scores as `evaluate` reads them, a group each: `id_test` is ID, near and far are OOD."""
    groups = {}
    for file in files:
        sets = read_sets(file)
        sides = [[s.scores for s in sets if s.role in roles] for roles in (("id_test",), ("near", "far"))]
        if not all(sides):
            roles = ", ".join(sorted({s.role for s in sets}))
            raise OpenbenchError(f"{file}: found the roles {roles} — a group needs id_test, and near or far")
        groups[str(file.with_suffix(""))] = (np.concatenate(sides[0]), np.concatenate(sides[1]))
    return GroupedScores("scores", "", groups)


def _double(text: str) -> tuple[str, str]:
    """The two methods of a double score, as `risk+ood`."""
    risk, plus, ood = text.partition("+")
    if not (risk and plus and ood) or "+" in ood:
        raise OpenbenchError(
            f"--double: found {text!r} — allowed: two methods joined by '+', first the one that finds misclassified "
            "inputs, e.g. msp+knn"
        )
    return risk, ood


def _contact_sheets(
    record: ResultRecord, sets: Sequence[SetScores], most: int
) -> "tuple[list[Sheet], tuple[str, ...], str]":
    """Return contact sheets, the names of the ID classes, and why there are no sheets (empty if there are).

    They show the ID test images with the largest scores, and the images of each OOD set with the smallest. Code that a
    record names and openbench does not ship is not run.

    Args:
        record: of the run.
        sets: its scores.
        most: images on each sheet.
    """
    from openbench.report.run_page import Picture, Sheet

    if not sets or most < 1:
        return [], (), ""
    benchmark, why = opened(record)
    if benchmark is None:
        return [], (), f"no images: {why}"
    splits = {(str(split.role), split.name): split for split in benchmark.splits() if not split.unread}
    sheets = []
    for s in sets:
        split, role = splits.get((str(s.role), s.name)), str(s.role)
        if split is None or len(split.keys) != len(s.scores) or role not in ("id_test", "near", "far"):
            continue
        order = np.argsort(-s.scores if role == "id_test" else s.scores, kind="stable")[:most]
        title = "ID test flagged first" if role == "id_test" else f"{s.name} ({role}) accepted first"
        pictures = (
            Picture(_png(split.items[at]), str(split.keys[at]), float(s.scores[at]), _class(s, at, benchmark.classes))
            for at in map(int, order)
        )
        sheets.append(Sheet(title, tuple(pictures)))
    return sheets, tuple(benchmark.classes), ""


def _class(s: SetScores, at: int, names: Sequence[str]) -> str:
    """The predicted class of an image, and its own where it is another."""
    predicted, true = (
        None if codes is None or codes[at] < 0 else names[codes[at]] for codes in (s.predictions, s.labels)
    )
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


_BENCHMARK = "+benchmark"
_WITHOUT = {f"no_{need.replace(' ', '_')}": need for need in ("training data", "outliers", "gradients", "text")}
_KEYS = (_BENCHMARK, "backbone", "training", "latency_ms", "memory_mb", "needs")


@click.command(cls=options.Command)
@click.argument("words", nargs=-1, metavar="KEY=VALUE…")
@options.table_format()
@options.json_file
@options.results
def recommend(args: Namespace) -> int:
    """Recommend methods, from the records of a benchmark and what they cost.

      +benchmark=NAME   the benchmark whose records are read; required
      backbone=NAME     this network only
      training=NAME     trained this way only
      latency_ms=N      at most N milliseconds per image, besides the network's own pass
      memory_mb=N       at most N MB at the peak of the process that scored, as its record has it
      needs=LIST        what you do not have: no_training_data, no_outliers, no_gradients, no_text

    Methods within the limits are compared by paired tests on the same images, by near AUROC and, where that does not
    decide, by far AUROC. Those that are not significantly worse than another are shown, with their costs and needs.

    Examples:
      python -m openbench recommend +benchmark=cifar10
      python -m openbench recommend +benchmark=cifar10 latency_ms=0.1 needs=no_training_data,no_gradients
    """
    from openbench.detect import recommend as advising  # which loads PyTorch

    limits = _limits(args.words)
    with left_out() as lost:
        advice = advising.recommend(**limits, folder=args.results, on_error=lost.append)
    if args.form == "console":
        for one in advice:
            print(console(str(one)) + "\n")
            print_tables(one.tables())
    else:
        print_tables([table for one in advice for table in one.tables()], args.form)
    if args.json is not None:
        write_json([one.values() for one in advice], args.json)
    return lost.code


def _limits(words: Sequence[str]) -> dict[str, Any]:
    """The arguments of `recommend` that words such as `latency_ms=5` name.

    Raises:
        ConfigError: no benchmark, an unknown key, or a value that is not allowed.
    """
    limits: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in _KEYS or not value:
            hint = did_you_mean(key, _KEYS)
            raise ConfigError(f"recommend: found '{word}'{hint} — allowed: {', '.join(f'{k}=…' for k in _KEYS)}")
        limits[key] = parse_yaml(value, key) if key in ("latency_ms", "memory_mb") else value
    if _BENCHMARK not in limits:
        raise ConfigError("recommend: no benchmark chosen — python -m openbench recommend +benchmark=cifar10")
    without = options.names(limits.pop("needs", ""))
    for need in without:
        check_choice("needs", need, list(_WITHOUT))
    return {"benchmark": limits.pop(_BENCHMARK), **limits, "without": [_WITHOUT[need] for need in without]}
