"""`completion`: a bash script for the tab key, and the words that it offers: commands, groups, names and keys."""

import argparse
import contextlib
import io
import os

from openbench.cli.process import OK

_HYDRA = ("run", "train", "extract", "check")
_EPILOG = """\
For the program `openbench`, which the installation puts beside python. In this shell, then in every new one:

  eval "$(openbench completion)"
  echo 'eval "$(openbench completion)"' >> ~/.bashrc
"""
# Bash splits words at `=` and wants the part after it only.
_SCRIPT = """\
_openbench() {
    local line="${COMP_LINE:0:COMP_POINT}" part="${COMP_WORDS[COMP_CWORD]}"
    local word="${line##* }"
    [ "$part" = "=" ] && part=""
    local before="${word%"$part"}"
    COMPREPLY=($(openbench completion "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    case "${COMPREPLY[0]}" in *=|*.|*/) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _openbench openbench
"""


def main(argv: list[str]) -> int:
    """Print the script, or the words that may complete a command line, one a line."""
    parser = argparse.ArgumentParser(
        prog="python -m openbench completion",
        description="A bash script that completes the commands of `openbench` on the tab key.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("line", nargs="?", help="used by the script: the command line so far")
    line = parser.parse_args(argv).line
    print(_SCRIPT if line is None else "\n".join(candidates(line)), end="" if line is None else "\n")
    return OK


def candidates(line: str) -> list[str]:
    """Return the words that the last word of a command line may become.

    Args:
        line: from the program's name to the cursor, e.g. `openbench run +benchmark=dig`.
    """
    from openbench.__main__ import COMMANDS

    _, *typed = line.split(" ")
    typed = [word for word in typed[:-1] if word] + typed[-1:]
    command, *rest = typed or [""]
    if not rest:
        found = list(COMMANDS)
    elif command in _HYDRA:
        return _overrides(command, rest)
    else:
        found = _names(command, [word for word in rest[:-1] if not word.startswith("-")])
    return [word for word in found if word.startswith(typed[-1])]


def _names(command: str, before: list[str]) -> list[str]:
    """Groups after `list` and `show`, entries after `show GROUP`, kinds after `new`, run ids of records."""
    from openbench import paths
    from openbench.cli.commands.listing import RECORD
    from openbench.cli.commands.new import KINDS
    from openbench.cli.registry import Registry
    from openbench.compose.sweep import options
    from openbench.results.names import is_part

    if (command, before) == ("show", [RECORD]) or command == "verify":
        found = {path.stem for path in (paths.results_dir() / "records").glob("*/*/*/*.json")}
        return sorted(filter(is_part, found))
    if command == "new":
        return [] if before else list(KINDS)
    if command == "show" and before:
        return options(before[0])
    return [*Registry.of(None).groups(), *[RECORD] * (command == "show")] if command in ("list", "show") else []


def _overrides(command: str, words: list[str]) -> list[str]:
    """What Hydra offers: groups, their files, and keys of the config that the words before make."""
    from openbench.cli.commands import jobs
    from openbench.errors import OpenbenchError

    flags = ["-sc", "query=bash"]
    if "--config-dir" in words[:-1]:
        at = words.index("--config-dir")
        flags += words[at : at + 2]
        words = words[:at] + words[at + 2 :]
    elif words[-1].startswith("-"):
        return [word for word in ("--config-dir", "--multirun", "--help", "--cfg") if word.startswith(words[-1])]
    os.environ["COMP_LINE"] = " ".join([command, *words])
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(OpenbenchError):
        getattr(jobs, command).complete(flags)
    os.environ.pop("COMP_LINE")
    # Keys that begin with an underscore are not for typing.
    return [word for word in said.getvalue().split() if "._" not in word]
