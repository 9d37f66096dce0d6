"""One process at a time holds a lock, and a killed process holds none."""

import logging
import subprocess
import sys

import pytest
from filelock import FileLock, Timeout

from openbench.storage.files import only_one

HOLDER = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_process_waits_for_the_lock_of_another_and_logs_what_for(tmp_path, caplog):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(Timeout):
            FileLock(tmp_path / "a", timeout=0).acquire()

        class Killer(logging.Handler):
            def emit(self, record):
                process.kill()

        logger, handler = logging.getLogger("openbench.storage.files"), Killer()
        logger.addHandler(handler)
        try:
            with caplog.at_level(logging.INFO, logger.name), only_one(tmp_path / "a", "another job computes it"):
                assert caplog.messages == ["another job computes it, waiting"]
        finally:
            logger.removeHandler(handler)
