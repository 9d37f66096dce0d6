"""`study`: a paper's table, or your own: its status, its missing runs, and the table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openbench import paths
from openbench.cli import options
from openbench.cli.output import LeftOut, left_out, note, print_tables
from openbench.cli.process import INTERRUPTED, OK, TERMINATED, writing
from openbench.config.overrides import command_line, quoted
from openbench.config.shipped import shipped
from openbench.results.frame import runs
from openbench.results.records.store import OnError, RecordStore
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.tables.render import Table
from openbench.storage.files import write_whole
from openbench.studies.cells import StudyOptions, needed
from openbench.studies.runs import Records
from openbench.studies.study import study as named

if TYPE_CHECKING:
    from openbench.studies.plan import Progress
    from openbench.studies.study import Study

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
def study(
    *,
    name: str,
    overrides: tuple[str, ...],
    make: bool,
    table: bool,
    to: Path | None,
    allow: str | None,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    form: str,
    config_dir: Path | None,
    results: Path | None,
) -> int:
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
    chosen = named(name, config_dir)
    if rows or columns:
        chosen = chosen.narrowed(rows, columns)
    runtime = [word for word in overrides if _is_runtime(word)]
    words = tuple(word for word in overrides if word not in runtime)
    more, store = StudyOptions(words, allow == _INCOMPLETE, config_dir), RecordStore(results or paths.results_dir())
    if not (make or table or to):
        again = [name, "--run", *overrides]
        for option, value in (("--rows", ",".join(rows)), ("--columns", ",".join(columns)), ("--allow", allow)):
            again += [option, value] if value else []
        again += ["--results", str(results)] if results else []
        with left_out() as lost:
            records = _records(chosen, store, lost.append)
            progress, following = _status(chosen, more, records, command_line("study", again, config_dir))
        print_tables([progress], form)
        note(following, form)
        return lost.code
    if results is not None:
        runtime.append(f"runtime.results={quoted(str(results))}")
    code = _make(chosen, more, store, runtime) if make else OK
    if table or to:
        with left_out() as lost:
            _tables(chosen, more, store, lost, form=form if table else None, to=to)
        code = max(code, lost.code)
    return code


def _records(study: "Study", store: RecordStore, on_error: OnError) -> Records:
    return Records(runs(store, on_error, needed(study)))


def _status(study: "Study", more: StudyOptions, records: Records, again: str) -> tuple[Table, str]:
    """A table of what is done and what is missing, and what to type next; `again` makes what is missing."""
    from openbench.studies.plan import free_space, progress, status

    parts = progress(study, more, records)
    needs = {part.benchmark: _needs(part, more.config_dir) for part in parts if part.missing}
    return status(study, parts, needs, free_space(paths.cache_dir()), again)


def _make(study: "Study", more: StudyOptions, store: RecordStore, runtime: list[str]) -> int:
    """Make the missing runs: a sweep for each group of runs, one after the other."""
    from openbench.cli.commands.jobs import RUN
    from openbench.studies.plan import progress, sweeps

    with left_out() as lost:
        parts = progress(study, more, _records(study, store, lost.append))
    missing = [run for part in parts for run in part.missing]
    lines = sweeps(study, missing, [*runtime, *(["benchmark.incomplete=allow"] if more.incomplete else [])])
    if not lines:
        print("nothing is to do", file=sys.stderr)
    folder = [] if more.config_dir is None else ["--config-dir", str(more.config_dir)]
    code = lost.code
    for at, line in enumerate(lines, 1):
        print(f"sweep {at} of {len(lines)}: {command_line('run', line, more.config_dir)}", file=sys.stderr)
        code = max(code, RUN([*line, *folder]))
        if code in (INTERRUPTED, TERMINATED):
            break
    return code


def _tables(
    study: "Study", more: StudyOptions, store: RecordStore, lost: LeftOut, *, form: str | None, to: Path | None
) -> None:
    """Print the tables, or write them in every format, with their pictures."""
    from openbench.studies.tables import CachedScores, Outputs

    scores = CachedScores(paths.cache_dir() / "scores", store.root / PUBLISHED)
    records = _records(study, store, lost.append)
    outputs = Outputs(
        study,
        more,
        records,
        scores,
        load=lambda run: store.read(store.folder / run.file),
        on_lost=lost.append,
    )
    if form is not None:
        print(outputs.text(form), end="")
    for suffix, make in outputs.files() if to else ():
        path = Path(to or "") / f"{study.name}{suffix}"
        with writing(path, "--to"):
            write_whole(path, make())
        print(f"wrote {path}", file=sys.stderr)


def _is_runtime(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key.partition(".")[0] in ("runtime", "hydra") or key == "benchmark.incomplete"


def _needs(part: "Progress", config_dir: Path | None) -> list[str]:
    """A line for each set of images, and each file of weights, that the missing runs of a benchmark lack."""
    from openbench.cli.commands.data import benchmark_config
    from openbench.data.build import survey

    forms = dict.fromkeys(tuple(w for w in run.words if "benchmark" in w.partition("=")[0]) for run in part.missing)
    statuses = [s for words in forms for s in survey(benchmark_config(words, config_dir)) if s.missing]
    sets = list(dict.fromkeys(f"{s.path} ({s.found:,} of {s.expected:,})" for s in statuses))
    data = [f"data: {'; '.join(sets)} — python -m openbench data list {part.benchmark}"] * bool(sets)
    backbones = dict.fromkeys(run.names["backbone"] for run in part.missing)
    return data + [f"weights: {line}" for name in backbones for line in _absent(name)]


def _absent(backbone: str) -> list[str]:
    """A line about the weights of a backbone if they are not in the working folder or a data root."""
    node = shipped("backbone", backbone) or {}
    file = str(node.get("weights") or "")
    if "/" not in file:
        return []  # a library's, which it downloads where they are not in its cache
    there = any(place.is_file() for place in paths.places(file))
    return [] if there else [f"{file} of backbone {backbone}, in a data root (OPENBENCH_DATA, ./data)"]
