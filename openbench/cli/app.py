"""The commands: a table of them, each imported when it is called."""

import importlib
import os
from collections.abc import Sequence

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

import openbench
from openbench.cli.process import BAD_INPUT, OK
from openbench.errors import ConfigError, OpenbenchError, not_found

PROGRAM = "python -m openbench"
COMPLETION = "_OPENBENCH_COMPLETE"  # a variable that the tab key sets
SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}

# Command → module and function, and one line for `--help`.
COMMANDS = {
    "run": ("commands.jobs:RUN", "score a benchmark with a method and write the record"),
    "train": ("commands.jobs:TRAIN", "train a backbone; `run` does so by itself when weights are missing"),
    "extract": ("commands.jobs:EXTRACT", "fill the feature cache ahead of a sweep"),
    "check": ("commands.jobs:CHECK", "verify data, splits and weights before a run"),
    "sweep": ("commands.jobs:sweep", "show which jobs of a sweep are done, running or failed, and why"),
    "data": ("commands.data:data", "get data sets, verify them, look at them, bring your own"),
    "new": ("commands.new:new", "write a method, training, data set, backbone or study of your own"),
    "verify": ("commands.verify:verify", "compute records again, or check a submission"),
    "publish": ("commands.verify:publish", "copy the scores of runs beside their records"),
    "compare": ("commands.runs:compare", "compare runs on the same images"),
    "report": ("commands.runs:report", "write one run as an HTML page with tables and pictures"),
    "fit": ("commands.detector:fit", "write a detector with a guarantee, for your own images"),
    "score": ("commands.detector:score", "score image files with a detector, one row per image"),
    "evaluate": ("commands.evaluate:evaluate", "compute every metric of a file of scores"),
    "import": ("commands.evaluate:import_results", "make records of scores from elsewhere"),
    "thresholds": ("commands.runs:thresholds", "compare the best thresholds over groups of data"),
    "risk": ("commands.runs:risk", "compare methods by selective risk at a common TPR and FPR"),
    "leaderboard": ("commands.leaderboard:leaderboard", "regenerate the leaderboard from the records"),
    "recommend": ("commands.runs:recommend", "recommend methods, from records and costs"),
    "monitor": ("commands.detector:monitor", "watch a stream of images, and raise an alarm if it changes"),
    "serve": ("commands.detector:serve", "answer HTTP requests with a saved detector"),
    "study": ("commands.study:study", "reproduce a paper's table, or make your own"),
    "list": ("commands.listing:list_groups", "list what can be chosen: methods, benchmarks, backbones, …"),
    "show": ("commands.listing:show", "show one method, config or record in full"),
    "completion": ("app:completion", "print a script for completion with the tab key"),
}

EXAMPLES = """\

to begin with:
  python -m openbench list method
  python -m openbench run +benchmark=digits method=knn
  python -m openbench run -m +benchmark=digits 'method=glob(*)' seed=0,1,2
"""


class App(click.Group):
    """The commands of the table; to list them imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported now.

        Raises:
            OpenbenchError: there is none of that name.
        """
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            entry = getattr(importlib.import_module(f"openbench.cli.{module}"), name)
            return entry if isinstance(entry, click.Command) else entry.command()
        if cmd_name.startswith("-") or ctx.resilient_parsing:
            return None
        raise OpenbenchError(not_found(f"command '{cmd_name}'", cmd_name, COMMANDS, "--help"))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line for each command."""
        with formatter.section("commands (COMMAND --help explains one)"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples."""
        formatter.write(EXAMPLES)


@click.group(
    cls=App,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    options_metavar="",
    subcommand_metavar="COMMAND [ARGUMENTS]",
)
@click.version_option(openbench.__version__, "-v", "-V", "--version", message="openbench %(version)s")
def app() -> None:
    """Benchmark out-of-distribution detection."""


@app.command(
    epilog="""\b
In this shell, then in every new one:
  eval "$(openbench completion)"
  echo 'eval "$(openbench completion)"' >> ~/.bashrc"""
)
@click.argument("shell", type=click.Choice(list(SHELLS)), default="bash")
def completion(shell: str) -> None:
    """Print a script that completes commands, options and names on the tab key."""
    print(SHELLS[shell](app, {}, "openbench", COMPLETION).source())


def carry_out(arguments: Sequence[str]) -> int:
    """Carry out a command line and return its exit code.

    Raises:
        ConfigError: arguments that the command does not take.
    """
    if COMPLETION in os.environ:
        app.main(prog_name="openbench", complete_var=COMPLETION)  # prints what the tab key offers, and exits
    try:
        with app.make_context(PROGRAM, list(arguments) or ["--help"]) as context:
            code: int | None = app.invoke(context)
            return code or OK
    except click.exceptions.Exit as end:  # after --help
        return end.exit_code if arguments else BAD_INPUT
    except SystemExit as stop:  # of Hydra, after --help
        if stop.code:
            raise
        return OK
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else PROGRAM
        raise ConfigError(f"{error.format_message()} ({where} --help)") from error
