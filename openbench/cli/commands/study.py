"""`study`: a paper's table, or your own: its status, its missing runs, and the table."""

import sys
from argparse import Namespace
from pathlib import Path

import click

from openbench import paths
from openbench.cli import options
from openbench.cli.commands import jobs
from openbench.cli.commands.data import benchmark_config
from openbench.cli.output import left_out, note, print_tables
from openbench.cli.process import INTERRUPTED, OK, TERMINATED, writing
from openbench.config.folders import shipped
from openbench.config.overrides import command_line, quoted
from openbench.data.build import survey
from openbench.results.frame import runs
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import PUBLISHED
from openbench.storage.files import write_whole
from openbench.studies.cells import StudyOptions, needed
from openbench.studies.plan import Progress, free_space, progress, status, sweeps
from openbench.studies.runs import Records, is_runtime
from openbench.studies.study import Study, study as named

_INCOMPLETE = "incomplete"


@click.command(cls=options.Command)
@click.argument("name", metavar="NAME")
@click.argument("overrides", nargs=-1, metavar="KEY=VALUE…")
@click.option("--run", "make", is_flag=True, help="make the runs that are missing")
@click.option("--table", is_flag=True, help="print the table: ours beside the published figures")
@options.file_option("--to", "DIR", "write the table as Markdown, CSV, LaTeX and PNG")
@click.option(
    "--allow", type=click.Choice([_INCOMPLETE]), help="count and make runs on benchmarks whose data are incomplete"
)
@click.option("--rows", type=options.names, default="", metavar="NAME,…", help="only these rows or groups; * allowed")
@click.option("--columns", type=options.names, default="", metavar="NAME,…", help="only these columns or groups")
@options.table_format()
@options.config_dir
@options.file_option("--results", "DIR", "the folder that holds records/")
def study(args: Namespace) -> int:
    """Reproduce a paper's table, or make one of your own: its status, its missing runs, and the table.

    A study is a yaml with runs, layout and published figures. NAME is one of `list study` (`show study NAME` prints
    it), or a yaml of your own. KEY=VALUE are overrides of every run, e.g. backbone=NAME, which the title then names, or
    runtime=slurm. Without --run, --table or --to the command prints what is done and what is missing.

    --run makes the missing runs only, with the sweeps of `run`; after a kill, type the same command again.

    Examples:
      python -m openbench study openood_v1.5/table1
      python -m openbench study openood_v1.5/table1 --columns CIFAR-10 --run runtime=slurm
      python -m openbench study openood_v1.5/table1 --table --format latex
      python -m openbench study openood_v1.5/table1 --table --allow incomplete backbone=resnet20_cifar10 seed=0
      python -m openbench study mine.yaml --table --to tables
      python -m openbench new study mine.yaml -m +benchmark=digits method=knn,msp,vim seed=0,1,2
    """
    chosen = named(args.name, args.config_dir)
    if args.rows or args.columns:
        chosen = chosen.narrowed(args.rows, args.columns)
    runtime = [word for word in args.overrides if is_runtime(word)]
    words = tuple(word for word in args.overrides if word not in runtime)
    more = StudyOptions(words, args.allow == _INCOMPLETE, args.config_dir)
    store = RecordStore(args.results or paths.results_dir())
    if not (args.make or args.table or args.to):
        return _status(chosen, more, store, args)
    if not args.table:
        words = ("NAME", "KEY=VALUE…", "--run", "--to", "--allow", "--rows", "--columns", "--config-dir")
        options.check_read("study without --table", *words)
    if args.results is not None:
        runtime.append(f"runtime.results={quoted(str(args.results))}")
    code = _make(chosen, more, store, runtime) if args.make else OK
    return max(code, _tables(chosen, more, store, args)) if args.table or args.to else code


def _progress(study: Study, more: StudyOptions, store: RecordStore) -> tuple[list[Progress], int]:
    """What is done and missing; the exit code is 2 if files are not records."""
    with left_out() as lost:
        return progress(study, more, Records(runs(store, lost.append, needed(study)))), lost.code


def _status(study: Study, more: StudyOptions, store: RecordStore, args: Namespace) -> int:
    """Print a table of what is done and what is missing, and what to type next."""
    again = [args.name, "--run", *args.overrides]
    rows, columns = ",".join(args.rows), ",".join(args.columns)
    for option, value in (("rows", rows), ("columns", columns), ("allow", args.allow), ("results", args.results)):
        again += [f"--{option}", str(value)] if value else []
    parts, code = _progress(study, more, store)
    needs = {part.benchmark: _needs(part, more.config_dir) for part in parts if part.missing}
    command = command_line("study", again, more.config_dir)
    table, following = status(study, parts, needs, free_space(paths.cache_dir()), command)
    print_tables([table], args.form)
    note(following, args.form)
    return code


def _make(study: Study, more: StudyOptions, store: RecordStore, runtime: list[str]) -> int:
    """Make the missing runs: a sweep for each group of runs, one after the other."""
    parts, code = _progress(study, more, store)
    missing = [run for part in parts for run in part.missing]
    lines = sweeps(study, missing, [*runtime, *["benchmark.incomplete=allow"] * more.incomplete])
    if not lines:
        print("nothing is to do", file=sys.stderr)
    folder = [] if more.config_dir is None else ["--config-dir", str(more.config_dir)]
    for at, line in enumerate(lines, 1):
        print(f"sweep {at} of {len(lines)}: {command_line('run', line, more.config_dir)}", file=sys.stderr)
        code = max(code, jobs.RUN([*line, *folder]))
        if code in (INTERRUPTED, TERMINATED):
            break
    return code


def _tables(study: Study, more: StudyOptions, store: RecordStore, args: Namespace) -> int:
    """Print the tables, or write them in every format, with their pictures."""
    from openbench.studies.tables import CachedScores, Outputs

    scores = CachedScores(paths.cache_dir() / "scores", store.root / PUBLISHED)
    with left_out() as lost:
        records = Records(runs(store, lost.append, needed(study)))
        outputs = Outputs(
            study, more, records, scores, load=lambda run: store.read(store.folder / run.file), on_lost=lost.append
        )
        if args.table:
            print(outputs.text(args.form), end="")
        for suffix, make in outputs.files() if args.to else ():
            path = args.to / f"{study.name}{suffix}"
            with writing(path, "--to"):
                write_whole(path, make())
            print(f"wrote {path}", file=sys.stderr)
    return lost.code


def _needs(part: Progress, config_dir: Path | None) -> list[str]:
    """A line for each set of images, and each file of weights, that the missing runs of a benchmark lack."""
    forms = dict.fromkeys(tuple(w for w in run.words if "benchmark" in w.partition("=")[0]) for run in part.missing)
    statuses = [s for words in forms for s in survey(benchmark_config(words, config_dir)) if s.missing]
    sets = list(dict.fromkeys(f"{s.path} ({s.found:,} of {s.expected:,})" for s in statuses))
    lines = [f"data: {'; '.join(sets)} — python -m openbench data list {part.benchmark}"] * bool(sets)
    for name in dict.fromkeys(run.names["backbone"] for run in part.missing):
        file = str((shipped("backbone", name) or {}).get("weights") or "")
        # A library downloads its own where they are not in its cache.
        if "/" in file and not any(place.is_file() for place in paths.places(file)):
            lines.append(f"weights: {file} of backbone {name}, in a data root (OPENBENCH_DATA, ./data)")
    return lines
