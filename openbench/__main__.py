"""The command line: a table of sub-commands, each imported only when it is called."""

import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import openbench
from openbench.cli.process import BAD_INPUT, OK, flush, report, take_signals
from openbench.errors import OpenbenchError, did_you_mean


@dataclass(frozen=True)
class Command:
    """Where a sub-command lives and what it does.

    Args:
        target: `module:function`; the function takes the remaining arguments and returns the exit code.
        summary: one line for `--help`.
    """

    target: str
    summary: str

    def load(self) -> Callable[[list[str]], int]:
        """Import the module and return the function."""
        module, _, name = self.target.partition(":")
        function: Callable[[list[str]], int] = getattr(importlib.import_module(module), name)
        return function


COMMANDS = {
    "run": Command("openbench.cli.commands.jobs:run", "score a benchmark with a method and write the record"),
    "train": Command(
        "openbench.cli.commands.jobs:train", "train a backbone; `run` does so by itself when weights are missing"
    ),
    "extract": Command("openbench.cli.commands.jobs:extract", "fill the feature cache ahead of a sweep"),
    "check": Command("openbench.cli.commands.jobs:check", "verify data, splits and weights before a run"),
    "sweep": Command("openbench.cli.commands.sweep:main", "how far sweeps are: done, running, failed and why"),
    "data": Command("openbench.cli.commands.data:main", "get data sets, verify them, look at them, bring your own"),
    "new": Command(
        "openbench.cli.commands.new:main", "a method, training, data set or backbone of your own, to be filled in"
    ),
    "stream": Command("openbench.cli.commands.stream:main", "score streams with a method that learns from them"),
    "verify": Command("openbench.cli.commands.verify:main", "compute a record again and say whether it reproduces"),
    "publish": Command("openbench.cli.commands.publish:main", "put the scores of runs beside their records"),
    "compare": Command("openbench.cli.commands.compare:main", "compare runs on the same images"),
    "report": Command("openbench.cli.commands.report:main", "write one run as a page with tables and pictures"),
    "submit": Command("openbench.cli.commands.submit:main", "check results before they are sent in"),
    "fit": Command("openbench.cli.commands.fit:main", "write a detector with a guarantee, for images of your own"),
    "score": Command("openbench.cli.commands.score:main", "what a detector says of image files, one row per image"),
    "evaluate": Command(
        "openbench.cli.commands.evaluate:main", "every table from a file of scores, whatever made them"
    ),
    "thresholds": Command(
        "openbench.cli.commands.thresholds:main", "how far the best threshold moves over groups of data"
    ),
    "risk": Command("openbench.cli.commands.risk:main", "methods compared by selective risk at a common TPR and FPR"),
    "leaderboard": Command("openbench.cli.commands.leaderboard:main", "regenerate the leaderboard from the records"),
    "recommend": Command("openbench.cli.commands.recommend:main", "which method to take, from records and costs"),
    "monitor": Command("openbench.cli.commands.monitor:main", "has the stream of images changed? an alarm if so"),
    "serve": Command("openbench.cli.commands.serve:main", "answer HTTP requests with a saved detector"),
    "study": Command("openbench.cli.commands.study:main", "a paper's table, or one of your own, from its runs"),
    "list": Command("openbench.cli.commands.listing:main", "what can be chosen: methods, benchmarks, backbones, …"),
    "show": Command("openbench.cli.commands.listing:show", "one method, config or record in full"),
    "completion": Command(
        "openbench.cli.commands.completion:main", "a bash script that completes all this on the tab key"
    ),
}

EXAMPLES = (
    "python -m openbench list method",
    "python -m openbench run +benchmark=digits method=knn",
    "python -m openbench run -m +benchmark=digits 'method=glob(*)' seed=0,1,2",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return the exit code.

    0 = done; 1 = a check failed or an internal error; 2 = bad input, one message on stderr; 130 = interrupted;
    143 = terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Waiting OpenMP threads spin: where another process wants the core, a small network takes ten times as long. This
    # bounds the spinning, at no cost on an idle machine. It must be set before torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        _check_process()
        code = _dispatch(arguments)
        flush(code)
        return code
    except (Exception, KeyboardInterrupt) as error:
        return report(error)


def _check_process() -> None:
    """Refuse a closed stdout, whose number the next file would get, and a working directory that was deleted."""
    if sys.stdout is None:
        raise OpenbenchError("the output is closed (>&-) — discard it with > /dev/null")
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise OpenbenchError("the working directory is gone — change to another one (cd)") from error


def script() -> int:
    """Run as the whole process: `python -m openbench` and the installed command `openbench`."""
    take_signals()
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # methods of one's own in the working directory, as `python -m` finds them
    # A name that is not UTF-8 is shown with its bytes in place of an exception.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return main()


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return OK if arguments else BAD_INPUT
    name, *rest = arguments
    if name in ("-v", "-V", "--version"):
        print(f"openbench {openbench.__version__}")
        return OK
    if name not in COMMANDS:
        raise OpenbenchError(
            f"command '{name}' not found{did_you_mean(name, COMMANDS)} — available: {', '.join(COMMANDS)} "
            "(python -m openbench --help)"
        )
    try:
        return COMMANDS[name].load()(rest)
    except SystemExit as stop:  # of argparse, after --help
        if stop.code not in (None, 0):
            raise
        return OK


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    examples = "\n".join(f"  {example}" for example in EXAMPLES)
    return (
        "usage: python -m openbench COMMAND [ARGUMENTS]\n\n"
        f"commands (COMMAND --help explains one):\n{commands}\n\n-v, --version prints the version\n\n"
        f"to begin with:\n{examples}"
    )


if __name__ == "__main__":
    sys.exit(script())
