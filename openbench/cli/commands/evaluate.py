"""`evaluate`: every table from a file of scores, or from a folder of them; `import`: records of such scores."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from openbench.api.result import Result, names_of
from openbench.api.scores import result_of
from openbench.cli import options
from openbench.cli.commands.data import benchmark_config
from openbench.cli.output import left_out, note, print_tables, write_json
from openbench.cli.process import OK
from openbench.compose.config import composed
from openbench.config.overrides import NAME
from openbench.core.names import PART, is_part
from openbench.core.scores import SetScores
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.engine.given import given_record, measured_on
from openbench.engine.provenance import WARNINGS
from openbench.errors import ConfigError, did_you_mean
from openbench.metrics.suite import ROLES, MetricOptions, fixed_thresholds
from openbench.results.escape import console, console_lines
from openbench.results.records.settings import given_of
from openbench.results.records.store import RecordStore, ignore
from openbench.results.scores.formats import Meaning, read_scores
from openbench.results.scores.stored import PUBLISHED, ScoreStore
from openbench.results.tables.render import Table
from openbench.results.tables.views import SIDES, VIEWS, explained, run_tables

ALL = "all"
_FIRST = ("id_test", "csid", "near", "far", "ood_val", "id_val")  # a file named as two sets of a benchmark is the first
SCORE_VIEWS = tuple(view for view in VIEWS if view not in ("trials", "counts"))  # a file of scores has no others


def _rates(text: str) -> float | dict[str, float]:
    """A rate, or `SET=RATE,SET=RATE`."""
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    try:
        rates = {name: float(rate) for name, _, rate in pairs} if "=" in text else float(text)
    except ValueError:
        rates = {}
    if isinstance(rates, dict) and ("" in rates or len(rates) < len(pairs)):
        raise click.BadParameter(f"found {text!r} — allowed: a rate for all sets, or SET=RATE,… with each set once")
    return rates


def _file_of_set(text: str) -> tuple[str, tuple[str, str]]:
    """ROLE=FILE or ROLE:SET=FILE, as the name of the file with its role and set."""
    where, _, file = text.partition("=")
    role, _, name = where.partition(":")
    if role not in ROLES or not file:
        raise click.BadParameter(
            f"found {text!r}{did_you_mean(role, ROLES)} — allowed: ROLE=FILE or ROLE:SET=FILE, e.g. "
            f"near:cifar100=cifar100.npz, where ROLE is one of {', '.join(ROLES)}"
        )
    return file, (role, name or Path(file).stem)


_SETS = click.option(
    "--set",
    "files",
    type=_file_of_set,
    multiple=True,
    metavar="ROLE[:SET]=FILE",
    help=f"the role of a file of arrays: {', '.join(ROLES)}",
)
_LARGER_IS = click.option("--larger-is", type=click.Choice(["id", "ood"]), help="what a larger score means")


def roles_of(benchmark: BenchmarkConfig) -> dict[str, str]:
    """Return {set: role} of the sets of a benchmark that can have scores."""
    named = [(str(s.role), s.path.partition(".")[2]) for s in benchmark.sets if str(s.role) in _FIRST[1:4]]
    named += [(str(s.role), s.config.name) for s in benchmark.sets if str(s.role) in _FIRST and not s.member]
    return {name: role for role, name in sorted(named, key=lambda pair: -_FIRST.index(pair[0]))}


@click.command(cls=options.Command)
@click.argument("scores", type=options.FILE, metavar="SCORES")
@click.option("--benchmark", metavar="NAME", help="files are named as its sets, which gives their roles")
@_LARGER_IS
@_SETS
@options.file_option("--json", "FILE", "write every number as {set or group: {key: value}}")
@click.option("--view", type=click.Choice([*SCORE_VIEWS, ALL]), default="overview", help="which tables")
@options.table_format()
@click.option("--explain", is_flag=True, help="also print every convention that the numbers depend on")
@options.fields_of(MetricOptions, fpr=_rates, fdr=lambda text: text if text == options.NULL else float(text))
def evaluate(args: Namespace) -> int:
    """Compute every metric of a file of scores, or of a folder of them, and print the tables.

    SCORES is a .csv or .parquet with a row per scored image and the columns score (larger = more OOD), set, role
    (id_test, id_val, csid, ood_val, near, far); optionally correct (0/1), label, prediction, image, p_0 … p_{c-1}.
    Decimals that share a float64 are ties; numbers beyond 2^53 that do are refused.

    Or a set in a file: the .npz that OpenOOD saves (conf, pred, label; a larger conf is more ID), an .npz or the .pt of
    pytorch-ood's buffers with scores and, optionally, label (negative = OOD), pred and images, or an .npy of scores.
    What such a file does not say is asked for: what a larger score means (--larger-is), and the role of its set (--set,
    or --benchmark where files have the names of the benchmark's sets).

    Lists are separated by commas. The options of metrics have the defaults of configs/metrics/default.yaml.

    Examples:
      python -m openbench evaluate scores.csv
      python -m openbench evaluate output/scores --benchmark cifar10
      python -m openbench evaluate mine --larger-is ood --set id_test=cifar10.npz --set near:tin=tiny.npz
      python -m openbench evaluate scores.parquet --json metrics.json
      python -m openbench evaluate scores.csv --families ranking,conformal --delta 0.01 --correction simes
    """
    if args.json is not None and args.json.exists() and args.scores.exists() and args.json.samefile(args.scores):
        raise ConfigError(f"--json {args.json} would overwrite the scores — choose another file")
    chosen = MetricOptions(**options.chosen(args, MetricOptions))
    roles = roles_of(benchmark_config([f"+benchmark={args.benchmark}"])) if args.benchmark else {}
    meaning = Meaning(args.larger_is or "", dict(args.files), roles, args.benchmark or "")
    with left_out() as lost:
        sets = read_scores(args.scores, meaning, lost.append if os.path.isdir(args.scores) else raised)
    result = result_of(sets, chosen, args.scores.name)
    tables = [table for one in (SCORE_VIEWS if args.view == ALL else (args.view,)) for table in _tables(result, one)]
    for line in result.warnings:
        print(console(line), file=sys.stderr)
    if not tables:
        print(f"view '{args.view}' is empty: the file or the families do not yield it", file=sys.stderr)
    print_tables(tables, args.form)
    if args.explain:
        note(explained(result.record.header), args.form)
    if args.json is not None:
        write_json(result.metrics, args.json)
    return lost.code


def raised(error: Exception) -> None:
    """Raise an error, where there is nothing else to go on with."""
    raise error


def _tables(result: Result, view: str) -> Iterator[Table]:
    """The tables of one view; backbone and method are unknown, so their titles name the file and its accuracy."""
    accuracy = result.metrics["id"].get("accuracy")
    known = [] if accuracy is None else [f"ID accuracy {100 * float(accuracy):.2f} %"]
    tables = run_tables(result.record, view)
    sides = [next((s for s in SIDES.values() if s and t.title.startswith(f"{view} · {s} · ")), "") for t in tables]
    standard = [at for at, side in enumerate(sides) if not side]
    for at, (side, table) in enumerate(zip(sides, tables, strict=True)):
        title = " · ".join(part for part in (view, side, str(result.record.benchmark["name"]), *known) if part)
        notes = [_operating(result.scores)] if view == "threshold" and standard[-1:] == [at] else []
        yield replace(table, title=title, notes=(*table.notes, *notes))


def _operating(sets: Sequence[SetScores]) -> str:
    """What the names of thresholds stand for, with their values, to be used elsewhere."""
    meant = {"95tnr": "accepts 95 % of id_test", "val": "FPR = FNR on id_val and ood_val"}
    values = [f"{name} = {value:.6g} ({meant[name]})" for name, value in fixed_thresholds(sets).items()]
    unknown = [] if len(values) == len(meant) else ["val: needs the roles id_val and ood_val"]
    return (
        f"thresholds, above which a score is flagged: {' · '.join([*values, *unknown])} · test: FPR = FNR on each set "
        "itself, for comparison only"
    )


@click.group("import", cls=options.Group, no_args_is_help=False)
def import_results() -> None:
    """Make records of results from elsewhere."""


@import_results.command("scores")
@click.argument("words", nargs=-1, required=True, metavar="SCORES +benchmark=NAME")
@click.option("--name", required=True, metavar="NAME", help="of the method, as boards show it")
@click.option("--backbone", default="not_stated", metavar="NAME", help="of the network that made the scores")
@click.option("--training", default="not stated", metavar="TEXT", help="how that network was trained")
@click.option("--seed", type=click.IntRange(0), help="of that network; boards average the seeds of a method")
@click.option("--reference", default="", metavar="TEXT", help="where the method is described")
@_LARGER_IS
@_SETS
@options.config_dir
@options.results
def scores(args: Namespace) -> int:
    """Make a record of scores that somebody else's code computed, and publish the scores beside it.

    SCORES is a file or folder as `evaluate` reads it; the roles of files that have the names of the benchmark's sets
    are known. Counts must be those of the benchmark's sets, or of a record of it in the results folder; with
    benchmark.incomplete=allow, what is missing is recorded. Metrics and intervals are computed from the scores; boards
    show them in a group of their own, as nobody here ran the code that made them. The same scores give the same record.
    Scores with the same --name, --backbone and --training and another --seed are one row, the mean over seeds.

    Where a column `image` (or an array `images`) names all images as the benchmark's lists do, `compare` tests the
    difference to other records in pairs; else the images may be in another order, and it does not.

    Examples:
      python -m openbench import scores output/scores +benchmark=cifar10 --name mine --backbone resnet18
      python -m openbench import scores output/s1 +benchmark=cifar10 --name mine --backbone resnet18 --seed 1
      python -m openbench import scores mine.parquet +benchmark=cifar10 benchmark.incomplete=allow --name mine
    """
    overrides = [word for word in args.words if "=" in word or word.startswith("~")]
    paths = [Path(word) for word in args.words if word not in overrides]
    if len(paths) != 1:
        raise ConfigError(f"import scores: found {len(paths)} files or folders of scores — one is needed")
    for word in overrides:
        if not word.lstrip("+~").startswith(("benchmark", "dataset@benchmark", "metrics")):
            allowed = "overrides of benchmark and metrics; method, network and seed are --name, --backbone, --seed"
            raise ConfigError(f"import scores: '{word}' has no effect — allowed: {allowed}")
    for option, text in (("--name", args.name), ("--backbone", args.backbone)):
        if not is_part(text):
            raise ConfigError(f"{option}: found {text!r} — allowed: {PART}")
    job = composed("run", overrides, args.config_dir).config
    benchmark, metrics = BenchmarkConfig.parse(job["benchmark"]), {**job["metrics"]}
    del metrics[NAME]
    meaning = Meaning(args.larger_is or "", dict(args.files), roles_of(benchmark), benchmark.typed)
    sets = read_scores(paths[0], meaning, raised)
    store, published = RecordStore(args.results), ScoreStore(args.results / PUBLISHED)
    like = measured_on(benchmark.name, sets, store)
    names = {}
    if like is not None and not like.benchmark.get("pristine"):
        names = {f"{role}/{of}": keys for (role, of), keys in names_of(like)[0].items()}
    config = {"benchmark": job["benchmark"], "metrics": metrics}
    config |= {} if args.seed is None else {"seed": args.seed}
    method = {"name": args.name, "reference": args.reference}
    network = {"name": args.backbone, "training": args.training}
    record, sets = given_record(sets, method, network, config, like=like, names=names)
    found = store.find(record.run_id)
    about = (args.seed, record.backbone, record.benchmark["digest"])
    same_name = store.of_method(benchmark.name, args.backbone, args.name, ignore) if args.seed is not None else ()
    for other, file in same_name:
        same = (other.config.get("seed"), other.backbone, other.benchmark.get("digest")) == about
        if same and given_of(other) != given_of(record):
            raise ConfigError(
                f"--seed {args.seed}: '{file}' has other scores of this seed — give another, or remove that file"
            )
    if found is None:
        store.check_writable()
        published.write(record.run_id, sets)
    path = store.write(record) if found is None else found[1]
    for line in record.provenance.get(WARNINGS) or ():
        print(console_lines(line))
    print_tables(run_tables(record))
    print(f"{'written' if found is None else 'exists'} {path}")
    return OK
