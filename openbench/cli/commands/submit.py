"""`submit`: what speaks against results before they are sent in, or when they have been."""

import argparse
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.cli.process import FAILED, OK
from openbench.errors import ConfigError, OpenbenchError, check_known
from openbench.results.escape import console
from openbench.results.submissions import Checked, Known, check_scores, check_submission, counted

DESCRIPTION = "description.yaml"
_KEYS = ("benchmark", "method", "reference", "backbone", "training", "scores", "notes")
_NEEDED = ("benchmark", "method", "reference", "backbone", "scores")
_EPILOG = f"""\
FOLDER is a results folder: `records` as `run` writes them, and the `scores` that `publish` puts beside them. Everything
that can be computed from scores is computed again. Exit code 1: something is refused; 0: it may be ranked or is shown
apart, with reasons.

  python -m openbench publish all --results mine
  python -m openbench submit check mine

Without records: a file of scores as `evaluate` reads it, and beside it {DESCRIPTION} with the keys
{", ".join(_KEYS)}. Such results are shown apart, as their images and network cannot be checked.
"""


def main(argv: list[str]) -> int:
    """Check a submission and return the exit code: 1 if any of it is refused."""
    arguments = _parser().parse_args(argv)
    known = Known.of(arguments.results or paths.results_dir())
    if (arguments.folder / DESCRIPTION).is_file():
        found = [_described(arguments.folder, known)]
    else:
        found = check_submission(arguments.folder, known)
    for one in found:
        _say(one)
    counts = counted(found)
    print(", ".join(f"{n} {'may be ranked' if v == 'ranked' else v}" for v, n in counts.items()))
    return FAILED if counts["refused"] else OK


def _say(found: Checked) -> None:
    heading = {"ranked": "may be ranked", "apart": "shown apart, not ranked", "refused": "refused"}[found.verdict]
    print(console(f"{found.run_id} {found.method}: {heading}; {found.numbers} numbers computed again from its scores"))
    for text in (*(f"refused: {reason}" for reason in found.refused), *(f"apart: {reason}" for reason in found.apart)):
        print(console(f"  {text}"))


def _described(folder: Path, known: Known) -> Checked:
    """A file of scores with a description.

    Raises:
        ConfigError: the description is not one.
        OpenbenchError: the scores cannot be read, or give no metrics.
    """
    from openbench.cli.score_file import read_sets
    from openbench.metrics.suite import evaluate
    from openbench.storage.yaml_file import read_yaml

    about: Any = read_yaml(folder / DESCRIPTION)
    if not isinstance(about, dict):
        raise ConfigError(f"'{folder / DESCRIPTION}' holds no keys — write {', '.join(_KEYS)}, a line each")
    check_known(map(str, about), _KEYS, DESCRIPTION)
    lacking = [key for key in _NEEDED if not isinstance(about.get(key), str) or not about[key].strip()]
    if lacking:
        raise ConfigError(f"'{folder / DESCRIPTION}' lacks {', '.join(lacking)} — a text is needed for each")
    path = folder / about["scores"]
    if path.resolve().parent != folder.resolve():
        raise ConfigError(
            f"'{folder / DESCRIPTION}': scores — found {about['scores']!r} — the name of a file beside it"
        )
    sets = read_sets(path)
    refused, apart = check_scores(about["benchmark"], sets, known)
    numbers = 0
    try:
        numbers = sum(map(len, evaluate(sets).values()))
    except OpenbenchError as error:
        refused.append(str(error))
    return Checked(path.name, about["method"], tuple(refused), tuple(apart), numbers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench submit",
        description="Check results that are to be sent in.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["check"])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what is sent in")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="what is known already (default: OPENBENCH_RESULTS, else ./results)"
    )
    return parser
