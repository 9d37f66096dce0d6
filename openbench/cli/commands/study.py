"""`study`: a paper's table, or one's own: what it needs, what is done and to do, its runs, and the table itself."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from openbench import paths
from openbench.cli import options
from openbench.cli.output import LeftOut, left_out
from openbench.cli.process import INTERRUPTED, OK, TERMINATED, writing
from openbench.compose.config import check_no_clash
from openbench.config.overrides import command_line, quoted
from openbench.config.shipped import shipped
from openbench.errors import RecordError
from openbench.results.records.store import OnError, RecordStore
from openbench.results.scores.recompute import PUBLISHED
from openbench.storage.files import write_whole
from openbench.studies.cells import Asked, archive_of
from openbench.studies.study import study as named

if TYPE_CHECKING:
    from openbench.studies.plan import Part
    from openbench.studies.runs import Archive
    from openbench.studies.study import Study

_INCOMPLETE = "incomplete"
_EPILOG = """\
A study is a yaml that names runs, layout and published figures: `list study` names them, `show study NAME` prints one.
Without --run or --table it says what is needed, what is done, and what is to do.

  python -m openbench study openood_v1.5/table1
  python -m openbench study openood_v1.5/table1 --columns CIFAR-10 --run runtime=slurm
  python -m openbench study openood_v1.5/table1 --table --format latex
  python -m openbench study openood_v1.5/table1 --table --allow incomplete backbone=resnet20_cifar10 seed=0
  python -m openbench study mine.yaml --table --to tables
  python -m openbench new study mine.yaml -m +benchmark=digits method=knn,msp,vim seed=0,1,2

--run makes only what is missing, with the sweeps of `run`; killed, the same command goes on. --to writes Markdown, CSV,
LaTeX and PNG. Overrides such as backbone=… hold for all runs, and are named in the title.
"""


@click.command(cls=options.Command, epilog=_EPILOG)
@click.argument("name", metavar="NAME")
@click.argument("overrides", nargs=-1, metavar="KEY=VALUE…")
@click.option("--run", "make", is_flag=True, help="make the runs that are missing")
@click.option("--table", is_flag=True, help="print the table: ours beside the published figures")
@click.option("--to", type=options.FILE, metavar="DIR", help="write the table as Markdown, CSV, LaTeX and PNG")
@click.option(
    "--allow", type=click.Choice([_INCOMPLETE]), help="count and make runs on benchmarks of which data are missing"
)
@click.option("--rows", type=options.names, default="", metavar="NAME,…", help="only these rows or groups; * allowed")
@click.option("--columns", type=options.names, default="", metavar="NAME,…", help="only these columns or groups")
@options.table_format()
@options.config_dir
@click.option("--results", type=options.FILE, metavar="DIR", help="folder that holds records/")
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
    """Say what a paper's table, or one of your own, needs and what is to do; make its runs; print the table.

    NAME is one of `list study`, or a yaml of your own; KEY=VALUE are overrides of every run, e.g. runtime=slurm.
    """
    if config_dir is not None:
        check_no_clash(config_dir)
    found = named(name, config_dir)
    if rows or columns:
        found = found.narrowed(rows, columns)
    carried_out = [word for word in overrides if _is_runtime(word)]
    words = tuple(word for word in overrides if word not in carried_out)
    call = _Call(found, Asked(words, allow == _INCOMPLETE, config_dir), results or paths.results_dir())
    if not (make or table or to):
        again = [name, "--run", *overrides]
        for option, value in (("--rows", ",".join(rows)), ("--columns", ",".join(columns)), ("--allow", allow)):
            again += [option, value] if value else []
        again += ["--results", str(results)] if results else []
        with left_out() as lost:
            print(call.status(lost.append, command_line("study", again, config_dir)), end="")
        return lost.code
    if results is not None:
        carried_out.append(f"runtime.results={quoted(str(results))}")
    code = call.make(carried_out) if make else OK
    if table or to:
        with left_out() as lost:
            call.tables(lost, form if table else None, to)
        code = max(code, lost.code)
    return code


@dataclass(frozen=True)
class _Call:
    """A study and its records.

    Args:
        study: narrowed.
        asked: what of it.
        results: the results folder.
    """

    study: "Study"
    asked: Asked
    results: Path

    def _archive(self, on_error: OnError) -> "Archive":
        return archive_of(self.study, self.asked, RecordStore(self.results).readable(on_error))

    def status(self, on_error: OnError, again: str) -> str:
        """Return what is needed, what is done and what is to do.

        Args:
            on_error: receives an error for each record that cannot be read.
            again: the command that makes what is missing.
        """
        from openbench.studies.plan import free_space, parts, status

        found = parts(self.study, self.asked, self._archive(on_error))
        free = free_space(paths.cache_dir())
        needs = {part.benchmark: _needs(part, self.asked.config_dir) for part in found if part.missing}
        return status(self.study, found, needs, free, again)

    def make(self, more: list[str]) -> int:
        """Make what is missing: a sweep for each group of runs, one after the other."""
        from openbench.cli.commands.jobs import RUN
        from openbench.studies.plan import parts, sweeps

        with left_out() as lost:
            found = parts(self.study, self.asked, self._archive(lost.append))
        missing = [one for part in found for one in part.missing]
        more = [*more, *(["benchmark.incomplete=allow"] if self.asked.incomplete else [])]
        lines = sweeps(self.study, missing, more)
        if not lines:
            print("nothing is to do", file=sys.stderr)
        folder = [] if self.asked.config_dir is None else ["--config-dir", str(self.asked.config_dir)]
        code = lost.code
        for at, line in enumerate(lines, 1):
            print(f"sweep {at} of {len(lines)}: {command_line('run', line, self.asked.config_dir)}", file=sys.stderr)
            code = max(code, RUN([*line, *folder]))
            if code in (INTERRUPTED, TERMINATED):
                break
        return code

    def tables(self, lost: LeftOut, form: str | None, to: Path | None) -> None:
        """Print the tables, or write them in every format, with their pictures."""
        from openbench.studies.kept import KeptScores
        from openbench.studies.outputs import Outputs, Sources

        store = RecordStore(self.results)
        scores = KeptScores(paths.cache_dir() / "scores", self.results / PUBLISHED)
        heard: list[RecordError] = []  # files that are read twice are told of once
        sources = Sources(lambda: store.readable(heard.append), scores, lost.append)
        made = Outputs(self.study, self.asked, sources)
        lost += {str(error): error for error in heard}.values()
        if form is not None:
            print(made.text(form), end="")
        for suffix, content in made.files() if to else ():
            path = Path(to or "") / f"{self.study.name}{suffix}"
            with writing(path, "--to"):
                write_whole(path, content)
            print(f"wrote {path}")


def _is_runtime(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key.partition(".")[0] in ("runtime", "hydra") or key == "benchmark.incomplete"


def _needs(part: "Part", config_dir: Path | None) -> list[str]:
    """A line for each set of images, and each file of weights, that the missing runs of a benchmark lack."""
    from openbench.cli.commands.data import benchmark_config
    from openbench.data.build import survey

    forms = dict.fromkeys(tuple(w for w in run.words if w.lstrip("+").startswith("benchmark")) for run in part.missing)
    statuses = [s for words in forms for s in survey(benchmark_config(words, config_dir)) if s.missing]
    found = list(dict.fromkeys(f"{s.path} ({s.found:,} of {s.expected:,})" for s in statuses))
    data = [f"data: {'; '.join(found)} — python -m openbench data list {part.benchmark}"] * bool(found)
    backbones = dict.fromkeys(run.names["backbone"] for run in part.missing)
    return data + [f"weights: {line}" for name in backbones for line in _absent(name)]


def _absent(backbone: str) -> list[str]:
    """What is said of weights that are not in a data root."""
    node = shipped("backbone", backbone) or {}
    file = str(node.get("weights") or "")
    if "/" not in file:
        return []  # a library's, which it downloads where they are not in its cache
    there = any((root / file).is_file() for root in paths.data_roots())
    return [] if there else [f"{file} of backbone {backbone}, in a data root (OPENBENCH_DATA, ./data)"]
