"""Under a limit of memory the work is done in a child: what libraries write to stderr is seen as it comes."""

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import openbench
from openbench.cli.process import limited

ROOT = Path(openbench.__file__).parent.parent
BEGIN = """
import os, resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
from openbench.cli.process import limited
limited.prepare()
"""
SECONDS = 60  # that only a failure takes


def started(script: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", BEGIN + script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_what_a_library_writes_to_stderr_is_seen_before_the_command_ends_and_its_last_words_are_not():
    job = started(
        """
os.write(2, b"[W] a library warns\\nand goes on\\n")
sys.stdin.read(1)
os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n  what():  no room\\n")
os.abort()
"""
    )
    seen = b""
    while seen.count(b"\n") < 2 and select.select([job.stderr], (), (), SECONDS)[0]:
        seen += os.read(job.stderr.fileno(), 1000)
    assert seen == b"[W] a library warns\nand goes on\n"  # the command waits for its input
    _, rest = job.communicate(b"x", timeout=SECONDS)
    assert job.returncode == 2
    assert rest.startswith(b"error: not enough memory")
    assert rest.count(b"\n") == 1


def test_a_command_ends_although_a_process_that_it_started_keeps_its_stderr_open():
    job = started(
        """
os.write(2, b"not enough memory for the fast way\\nslow, then\\nand without an end")
subprocess.Popen(["cat"])
sys.exit(3)
"""
    )
    with job:
        assert job.wait(SECONDS) == 3
        job.stdin.close()  # ends `cat`
        assert job.stderr.read() == b"not enough memory for the fast way\nslow, then\nand without an end"


def test_a_line_about_memory_after_which_the_command_lives_on_is_seen_and_so_is_what_follows(monkeypatch):
    monkeypatch.setattr(limited, "_LAST_WORDS", 0.0)
    (heard, told), (seen, shown) = os.pipe(), os.pipe()
    monkeypatch.setattr(limited, "_STDERR", shown)
    lines = b"WARNING: a batch of 256 does not fit into memory\njob 2 of 3\n"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as command:
        kept: list[bytes] = []
        passing = threading.Thread(target=lambda: kept.append(limited._pass_on(heard, command.pid)), daemon=True)
        passing.start()
        os.write(told, lines)
        found = b""
        while found != lines and select.select([seen], (), (), SECONDS)[0]:
            found += os.read(seen, 1000)
        command.stdin.close()
        passing.join(SECONDS)
    for end in (heard, told, seen, shown):
        os.close(end)
    assert (found, kept) == (lines, [b""])
