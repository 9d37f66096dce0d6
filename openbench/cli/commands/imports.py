"""`import`: results that were made elsewhere become records."""

from argparse import Namespace
from pathlib import Path

import click

from openbench.api.result import names_of
from openbench.cli import options
from openbench.cli.commands.evaluate import meaning_options, raised, roles_of
from openbench.cli.output import print_tables
from openbench.cli.process import OK
from openbench.compose.composed import composed
from openbench.config.overrides import NAME
from openbench.core.names import PART, is_part
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.engine.given import given_record, measured_on
from openbench.engine.provenance import WARNINGS
from openbench.errors import ConfigError
from openbench.results.escape import console_lines
from openbench.results.records.settings import given_of
from openbench.results.records.store import RecordStore, ignore
from openbench.results.scores.formats import Meaning, read_scores
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.views import run_tables


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
@meaning_options
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
