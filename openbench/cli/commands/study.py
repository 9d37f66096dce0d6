"""`study`: a paper's table, or one's own: what it needs, what is done and to do, its runs, and the table itself."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from openbench import paths
from openbench.cli.left_out import LeftOut, left_out
from openbench.cli.process import INTERRUPTED, OK, TERMINATED
from openbench.compose.config import check_no_clash
from openbench.config.overrides import command_line, quoted
from openbench.errors import OpenbenchError, RecordError
from openbench.results.records.store import OnError, RecordStore
from openbench.results.scores.recompute import PUBLISHED
from openbench.storage.files import write_whole
from openbench.studies.catalogue import study as named
from openbench.studies.cells import Asked, archive_of

if TYPE_CHECKING:
    from openbench.studies.made import Archive
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
  python -m openbench study new mine.yaml -m +benchmark=digits method=knn,msp,vim seed=0,1,2

--run makes only what is missing, with the sweeps of `run`; killed, the same command goes on. --to writes Markdown, CSV,
LaTeX and PNG. Overrides such as backbone=… hold for all runs, and are named in the title.
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    if argv[:1] == ["new"]:
        from openbench.cli.commands.study_new import new

        return new(argv[1:])
    arguments = _parser().parse_intermixed_args(argv)
    found = named(arguments.name, arguments.config_dir)
    if arguments.rows or arguments.columns:
        found = found.narrowed(arguments.rows, arguments.columns)
    return _Call(found, arguments).carry_out()


class _Call:
    """One call of the command.

    Args:
        study: what it is about, narrowed.
        arguments: as typed.
    """

    def __init__(self, study: "Study", arguments: argparse.Namespace) -> None:
        self.study, self.arguments = study, arguments
        carried_out = [word for word in arguments.overrides if _is_runtime(word)]
        words = tuple(word for word in arguments.overrides if word not in carried_out)
        self.carried_out = carried_out
        self.asked = Asked(words, arguments.allow == _INCOMPLETE, arguments.config_dir)
        self.results = arguments.results or paths.results_dir()

    def carry_out(self) -> int:
        """Do what is asked for; without --run and --table, say how far the study is."""
        wants = self.arguments
        if self.asked.config_dir is not None:
            check_no_clash(self.asked.config_dir)
        if not (wants.run or wants.table or wants.to):
            with left_out() as lost:
                print(self._status(self._archive(lost.append)), end="")
            return lost.code
        code: int = self._run() if wants.run else OK
        if wants.table or wants.to:
            with left_out() as lost:
                self._tables(lost)
            code = max(code, lost.code)
        return code

    def _archive(self, on_error: OnError) -> "Archive":
        return archive_of(self.study, self.asked, RecordStore(self.results).readable(on_error))

    def _status(self, archive: "Archive") -> str:
        from openbench.cli.study_needs import needs
        from openbench.studies.plan import free_space, parts
        from openbench.studies.status import status

        found = parts(self.study, self.asked, archive)
        free = free_space(paths.cache_dir())
        return status(self.study, found, needs(found, self.asked.config_dir), free, self._again())

    def _again(self) -> str:
        """The command that makes what is missing."""
        typed = self.arguments
        words = [typed.name, "--run", *typed.overrides]
        for option, value in (("--rows", ",".join(typed.rows)), ("--columns", ",".join(typed.columns))):
            words += [option, value] * bool(value)
        words += ["--allow", typed.allow] * bool(typed.allow)
        words += ["--results", str(typed.results)] * bool(typed.results)
        return command_line("study", words, typed.config_dir)

    def _run(self) -> int:
        """Make what is missing: a sweep for each group of runs, one after the other."""
        from openbench.cli.commands.jobs import run
        from openbench.studies.plan import parts, sweeps

        with left_out() as lost:
            found = parts(self.study, self.asked, self._archive(lost.append))
        missing = [one for part in found for one in part.missing]
        more = [*self.carried_out, *(["benchmark.incomplete=allow"] if self.asked.incomplete else [])]
        if self.arguments.results is not None:
            more.append(f"runtime.results={quoted(str(self.arguments.results))}")
        lines = sweeps(self.study, missing, more)
        if not lines:
            print("nothing is to do", file=sys.stderr)
        folder = [] if self.asked.config_dir is None else ["--config-dir", str(self.asked.config_dir)]
        code = lost.code
        for at, line in enumerate(lines, 1):
            print(f"sweep {at} of {len(lines)}: {command_line('run', line, self.asked.config_dir)}", file=sys.stderr)
            code = max(code, run([*line, *folder]))
            if code in (INTERRUPTED, TERMINATED):
                break
        return code

    def _tables(self, lost: LeftOut) -> None:
        """Print the tables, or write them in every format, with their pictures."""
        from openbench.studies.layout.kept import KeptScores
        from openbench.studies.layout.outputs import Outputs, Sources

        store = RecordStore(self.results)
        scores = KeptScores(paths.cache_dir() / "scores", self.results / PUBLISHED)
        heard: list[RecordError] = []  # files that are read twice are told of once
        sources = Sources(lambda: store.readable(heard.append), scores, lost.append)
        made = Outputs(self.study, self.asked, sources)
        lost += {str(error): error for error in heard}.values()
        if self.arguments.table:
            print(made.text(self.arguments.format), end="")
        for suffix, content in made.files() if self.arguments.to is not None else ():
            path = self.arguments.to / f"{self.study.name}{suffix}"
            try:
                write_whole(path, content)
            except OSError as error:
                raise OpenbenchError(
                    f"--to: '{path}' cannot be written — {error.strerror or error} — choose another folder"
                ) from error
            print(f"wrote {path}")


def _is_runtime(word: str) -> bool:
    key = word.lstrip("+~").partition("=")[0]
    return key.partition(".")[0] in ("runtime", "hydra") or key == "benchmark.incomplete"


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench study",
        description="A paper's table, or one of your own, from its runs: what it needs, what is to do, the table.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="a name of `list study`, or a yaml of your own; or: new")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="overrides of every run, e.g. runtime=slurm")
    parser.add_argument("--run", action="store_true", help="make the runs that are missing")
    parser.add_argument("--table", action="store_true", help="print the table: ours beside the published figures")
    parser.add_argument("--to", type=Path, metavar="DIR", help="write the table as Markdown, CSV, LaTeX and PNG")
    parser.add_argument(
        "--allow", choices=(_INCOMPLETE,), help="count and make runs on benchmarks of which data are missing"
    )
    parser.add_argument(
        "--rows", type=_names, default=(), metavar="NAME,…", help="only these rows or groups; * allowed"
    )
    parser.add_argument("--columns", type=_names, default=(), metavar="NAME,…", help="only these columns or groups")
    parser.add_argument(
        "--format", choices=("console", "markdown", "latex", "csv"), default="console", help="how --table prints"
    )
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own group files")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="folder that holds records/ (default: OPENBENCH_RESULTS, ./results)"
    )
    return parser
