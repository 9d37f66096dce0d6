"""Ctrl-C and SIGTERM end the process at once, with the exit code that shells expect and without a traceback.

What is interrupted has no end of its own, so nothing here is timed: a process that does not answer is never done.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from openbench.cli.process import interrupts

BEGIN = (
    "from openbench.__main__ import main; import openbench.__main__ as m\n"
    "from openbench.cli.process import interrupts, limited\n"
)
# The sub-command is replaced; everything around it is what the command line does.
COMMAND = BEGIN + (
    "import sys, time, os, hashlib\ninterrupts.prepare()\nlimited.prepare()\n"
    "def act(rest):\n{body}\nm._dispatch = act\nsys.exit(m.script())\n"
)
FOR_EVER = "time.sleep(10**6)"
BODIES = {
    "python": f"print('go', flush=True); {FOR_EVER}",
    # One call into C that lets other threads run and sees no signal, as a matrix product. The thread says so from
    # within the call: no other thread gets a turn before.
    "library": "import _thread; sys.setswitchinterval(1000)\n"
    "        _thread.start_new_thread(lambda: print('go', flush=True), ())\n"
    "        hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
    "swallowing": "print('go', flush=True)\n"
    f"        while True:\n            try: {FOR_EVER}\n            except BaseException: pass",
    "renaming": f"try:\n            print('go', flush=True); {FOR_EVER}\n"
    "        except BaseException: raise ValueError('odd')",
    "taking apart": f"class Slow:\n            def __del__(self): print('go', flush=True); {FOR_EVER}\n        Slow()",
    "slow clean-up": f"try:\n            print('go', flush=True); {FOR_EVER}\n        finally: {FOR_EVER}",
}
HANG = 600.0  # seconds after which a process that does not end fails its test


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    """A process that did not answer is killed."""
    yield
    for process in STARTED:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    STARTED.clear()


def answer_interrupts() -> None:
    """Let Ctrl-C reach the new process also where the tests themselves run in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def under_a_limit() -> None:
    """As above, with 8 GiB of address space, of which nothing here needs a tenth: a child does the work."""
    answer_interrupts()
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


def begun(body: str, before: Callable[[], None] = answer_interrupts) -> subprocess.Popen[str]:
    """A process that has come as far as its sub-command."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(body="    " + body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
        process_group=0,
    )
    STARTED.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    return process


@pytest.mark.slow_cases
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("body", BODIES)
def test_a_signal_ends_the_process_whatever_it_is_doing(body: str, number: signal.Signals, code: int, times: int):
    process = begun(f"if True:\n        {BODIES[body]}")
    for _ in range(times):
        process.send_signal(number)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == code
    assert said.strip() == ("interrupted" if number == signal.SIGINT else "terminated")


def test_what_does_not_answer_is_given_less_than_half_a_second():
    assert 0 < interrupts._PATIENCE + interrupts._MOMENT <= 0.45


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the parent", "as a terminal does"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_under_a_limit_a_signal_ends_parent_and_child_after_a_clean_up(send, number: signal.Signals, code: int):
    body = "try:\n        print('go', flush=True); time.sleep(10**6)\n    finally: print(os.getpid(), flush=True)"
    process = begun(body, under_a_limit)
    send(process.pid, number)
    child, said = process.communicate(timeout=HANG)
    assert (process.returncode, said.split()) == (code, ["interrupted" if number == signal.SIGINT else "terminated"])
    assert int(child) != process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)


@pytest.mark.parametrize("place", ["getsignal", "signal"])
@pytest.mark.parametrize("again", [interrupts._first, interrupts._second])
def test_a_signal_that_arrives_while_the_first_one_is_taken_changes_nothing(monkeypatch, place: str, again):
    """A terminal's Ctrl-C arrives twice under a limit: by itself, and from the parent that passes it on."""
    monkeypatch.setattr(interrupts, "_when", [])
    monkeypatch.setattr(interrupts, "_pressed", [])
    monkeypatch.setattr(interrupts, "_importing", lambda frame: False)
    begun = threading.Event()
    begun.set()
    monkeypatch.setattr(interrupts, "_begun", begun)
    monkeypatch.setattr(interrupts, "_end", lambda number: pytest.fail("hurried"))
    meanwhile = [again]

    def arriving(*_: object) -> object:
        if meanwhile:
            meanwhile.pop()(signal.SIGINT, None)
        return interrupts._first

    monkeypatch.setattr(signal, "getsignal", lambda number: interrupts._first)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(signal, place, arriving)
    with pytest.raises(KeyboardInterrupt):
        interrupts._first(signal.SIGINT, None)
    assert not meanwhile


def test_under_a_limit_a_killed_parent_leaves_no_child():
    process = begun(BODIES["python"], under_a_limit)
    process.kill()
    process.communicate(timeout=HANG)  # returns when the child has closed its end of the pipes


@pytest.mark.slow
@pytest.mark.parametrize("death", [signal.SIGSEGV, signal.SIGABRT])
def test_under_a_limit_the_death_of_a_library_is_one_message(death: signal.Signals):
    body = f"print('go', flush=True); os.write(2, b'terminate called'); os.kill(os.getpid(), {int(death)})"
    process = begun(body, under_a_limit)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == 2
    assert said.startswith("error: not enough memory — `ulimit -v` allows 8,192 MiB, and a library ended the process")
    assert (death.name in said, "terminate called" in said, said.count("\n")) == (True, False, 1)
    process = begun(body)
    process.communicate(timeout=HANG)
    assert process.returncode == -death  # without a limit it is a fault, and stays one


def test_under_a_limit_what_libraries_say_and_other_ends_arrive():
    process = begun("print('go', flush=True); os.write(2, b'a warning'); os.kill(os.getpid(), 9)", under_a_limit)
    _, said = process.communicate(timeout=HANG)
    assert (process.returncode, said) == (-signal.SIGKILL, "a warning")


def test_quick_clean_up_is_waited_for():
    process = begun("try:\n        print('go', flush=True); time.sleep(10**6)\n    finally: print('clean', flush=True)")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=HANG)
    assert (process.returncode, out) == (143, "clean\n")


@pytest.mark.slow
def test_a_signal_to_a_forked_child_does_not_end_its_parent():
    process = begun(
        "reader, writer = os.pipe(); child = os.fork()\n"
        f"    if child == 0: os.write(writer, b'.'); {FOR_EVER}\n"
        "    os.read(reader, 1); os.kill(child, 15); os.waitpid(child, 0)\n"
        "    print('go', flush=True); time.sleep(1); return 7"
    )
    process.communicate(timeout=HANG)
    assert process.returncode == 7


@pytest.mark.parametrize("begin", [["-m", "openbench"], ["-c", "from openbench.cli.entry import run; run()"]])
def test_the_first_moments_give_no_traceback(begin: list[str]):
    command = [sys.executable, "-X", "importtime", *begin, "list", "method"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith("openbench.cli.process.first\n"):
            break
    process.stderr.readline()  # of the next module: it has been called by now
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG)
    assert "Traceback" not in said
    assert process.returncode in (130, 0)  # 0: it was done before the signal came


def test_nothing_is_raised_where_a_library_is_imported_since_its_own_code_may_abort(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time\ntry:\n print('go', flush=True); time.sleep(10**6)\nfinally: print('x')\n"
    )
    process = begun(f"sys.path.insert(0, {str(tmp_path)!r}); import slow")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=HANG)
    assert (process.returncode, out, said.strip()) == (130, "", "interrupted")


@pytest.mark.slow_cases
@pytest.mark.parametrize("said", ["'so far\\n'", FOR_EVER, "1 / 0"], ids=["quick", "slow", "failing"])
def test_last_words_are_said_where_the_program_cannot_unwind_and_keep_nobody(said: str):
    process = begun(f"with interrupts.last_words(lambda: {said}):\n        {BODIES['library']}")
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert shown.split("\n", 1) == ["interrupted", "so far\n" if "so far" in said else ""]


def test_when_all_is_done_a_signal_ends_the_process_without_a_word():
    process = begun("import atexit; atexit.register(lambda: (print('go', flush=True), time.sleep(10**6))); return 0")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=HANG)
    assert (process.returncode, said) == (-signal.SIGINT, "")
