"""What the tab key offers, and the script that asks for it."""

import os
import subprocess
import sys

from click.shell_completion import BashComplete

from openbench.__main__ import main
from openbench.cli.app import app


def completed(*words: str) -> list[str]:
    """What click finds for the last word."""
    found = BashComplete(app, {}, "openbench", "_OPENBENCH_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def offered(*words: str) -> list[str]:
    """What the tab key offers for the last word."""
    environment = {
        **os.environ,
        "_OPENBENCH_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["openbench", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "openbench"], env=environment, capture_output=True, text=True, check=True
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_and_names_are_offered(capsys):
    assert main(["completion"]) == 0
    assert "_OPENBENCH_COMPLETE=bash_complete" in capsys.readouterr().out
    assert completed("leader") == ["leaderboard"]
    assert completed("leaderboard", "--vi") == ["--view"]
    assert offered("show", "method", "knn_") == ["knn_mfs", "knn_msp", "knn_plain"]
