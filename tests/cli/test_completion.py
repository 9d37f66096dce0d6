"""What the tab key offers, as the script is asked for it and as bash shows it."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import openbench


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


def test_commands_options_and_names_are_offered():
    assert offered("leaderboard", "--vi") == ["--view"]
    assert offered("show", "method", "knn_") == ["knn_mfs", "knn_msp", "knn_plain"]


def test_the_tab_key_completes_in_bash(tmp_path):
    """A terminal, as a user has it: the script is installed, a line is begun, tab is pressed."""
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    program = tmp_path / "openbench"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m openbench "$@"\n')
    program.chmod(0o755)
    root = Path(openbench.__file__).parent.parent
    child, terminal = pty.fork()
    if child == 0:
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(root), "TERM": "dumb", "PS1": "> "}
        os.execve(bash, [bash, "--norc", "--noprofile", "-i"], environment)
    try:
        os.write(terminal, b'bind "set enable-bracketed-paste off"; eval "$(openbench completion)"; echo re"ady"\n')
        read_until(terminal, "ready\r\n")
        os.write(terminal, b"openbench leader\t")
        read_until(terminal, "openbench leaderboard ")
        os.write(terminal, b"--chec\t")
        read_until(terminal, "--check ")
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)


def read_until(terminal: int, text: str, seconds: float = 60) -> None:
    seen, end = "", time.monotonic() + seconds
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode()
    assert text in seen
