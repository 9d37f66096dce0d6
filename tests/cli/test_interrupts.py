"""Ctrl-C and SIGTERM end a command with one word and the exit code that shells expect."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import openbench

ROOT = Path(openbench.__file__).parent.parent
# The sub-command is replaced; everything around it is what the command line does.
COMMAND = (
    "import sys, time\nimport openbench.__main__ as m\ndef act(rest):\n{body}\nm.carry_out = act\nsys.exit(m.script())"
)
FOR_EVER = "print('go', flush=True); time.sleep(10**6)"
HANG = 60.0  # seconds after which a process that does not end fails its test
WORDS = {signal.SIGINT: (130, "interrupted\n"), signal.SIGTERM: (143, "terminated\n")}


def answer_interrupts() -> None:
    """Let Ctrl-C reach the new process also where the tests themselves run in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begun(body: str) -> subprocess.Popen[str]:
    """A process that has come as far as its sub-command."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(body=f"    {body}")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=answer_interrupts,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    return process


@pytest.mark.parametrize("number", WORDS)
def test_a_signal_ends_a_command_with_one_word_after_its_clean_up(number: signal.Signals):
    process = begun(f"try:\n        {FOR_EVER}\n    finally: print('clean')")
    process.send_signal(number)
    out, said = process.communicate(timeout=HANG)
    assert (process.returncode, said) == WORDS[number]
    assert out == "clean\n"


def test_the_second_signal_ends_a_command_at_once():
    process = begun(f"try:\n        {FOR_EVER}\n    finally: {FOR_EVER}")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"  # its clean-up, which takes for ever
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG)
    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_a_method_of_ones_own_in_the_working_directory_is_found_by_the_installed_program(tmp_path: Path):
    (tmp_path / "mine.py").write_text("raise SystemExit('found')\n")
    (tmp_path / "configs" / "method").mkdir(parents=True)
    (tmp_path / "configs" / "method" / "mine.yaml").write_text("_target_: mine.Mine\n")
    program = tmp_path / "bin" / "openbench"
    program.parent.mkdir()
    program.write_text("import sys\nfrom openbench.__main__ import script\nsys.exit(script())\n")
    words = [str(program), "show", "method", "mine", "--config-dir", "configs"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBENCH_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "found"
