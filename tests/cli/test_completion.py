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
from openbench.__main__ import COMMANDS, main
from openbench.cli.commands.completion import candidates
from openbench.paths import config_dir


def test_the_first_word_is_a_command():
    assert candidates("openbench ") == list(COMMANDS)
    assert candidates("openbench  le") == ["leaderboard"]


def test_a_group_offers_its_files():
    files = sorted(file.stem for file in (config_dir() / "method").glob("k*.yaml"))
    assert candidates("openbench run +benchmark=digits method=k") == [f"method={name}" for name in files]
    assert "+benchmark=digits" in candidates("openbench check +benchmark=d")


def test_keys_follow_from_what_is_chosen():
    assert candidates("openbench run +benchmark=digits method=knn method.") == [
        "method.index=",
        "method.k=",
        "method.probes=",
    ]


def test_files_of_ones_own_are_offered_too(tmp_path):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "zz_mine.yaml").write_text("_target_: mine.Mine\n")
    assert candidates(f"openbench run --config-dir {tmp_path} method=zz") == ["method=zz_mine"]


def test_show_offers_groups_then_entries_then_run_ids(tmp_path, monkeypatch):
    folder = tmp_path / "records" / "digits" / "tiny" / "knn"
    folder.mkdir(parents=True)
    (folder / "0123456789abcdef.json").write_text("{}")
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path))
    assert {"method", "record"} <= set(candidates("openbench show "))
    assert "record" not in candidates("openbench list ")
    assert candidates("openbench show method knn_") == ["knn_mfs", "knn_msp", "knn_plain"]
    assert candidates("openbench show record 01") == candidates("openbench verify 0") == ["0123456789abcdef"]


def test_what_cannot_be_completed_offers_nothing():
    assert candidates("openbench nonsense m") == []
    assert candidates("openbench run method=absent method.") == []


def test_the_script_is_bash(capsys):
    assert main(["completion"]) == 0
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    done = subprocess.run([bash, "-n"], input=capsys.readouterr().out, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
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
        os.write(terminal, b"openbench run +benchmark=dig\t")
        read_until(terminal, "+benchmark=digits ")
        os.write(terminal, b"method=vim_\t")
        read_until(terminal, "method=vim_msp ")
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
