"""What the tab key offers, and the script that asks for it."""

import os
import subprocess
import sys

from openbench.__main__ import main


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
    assert offered("leader") == ["leaderboard"]
    assert offered("leaderboard", "--vi") == ["--view"]
    assert offered("show", "method", "knn_") == ["knn_mfs", "knn_msp", "knn_plain"]
