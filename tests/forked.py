"""A copy of the tests' process, to be killed or to run beside it: it need not import everything, as a new one would."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


class Forked:
    """A copy of this process that does one thing and ends.

    Args:
        act: what it does; the exit code is 1 where that raises.
        note: the file that what it prints is written to.
        environment: variables that it has beside this process's own.
    """

    def __init__(self, act: Callable[[], object], note: Path, **environment: str) -> None:
        self._note = note
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:
                sys.stdout = sys.stderr = note.open("w")
                os.environ.update(environment)
                act()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; one that no process survives if none is named."""
        os.kill(self._pid, number)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return the exit code, negative for a signal, and what it printed."""
        _, status = os.waitpid(self._pid, 0)
        return os.waitstatus_to_exitcode(status), self._note.read_text()
