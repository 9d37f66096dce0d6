"""A command that is composed and waits before its job: each run is a copy of that process, in a tenth of the time."""

import importlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from .conftest import RUN, Ending, Place


def nothing() -> None:
    """What is done before a run that is left alone."""


class Waiting:
    """A process that stands before the job of a command and goes on from there in as many copies as are asked for.

    All that `Place.run` does is done here too, but composing the config, which reads neither cache nor results, is done
    once, and so are all imports.

    Args:
        place: where it runs.
        command: of `run`, `train` or `extract`; a single job.
    """

    def __init__(self, place: Place, command: Sequence[str] = RUN) -> None:
        import_what_is_imported_by(place, command)
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            place.be(partial(_stand, theirs), command)
        theirs.close()

    def run(self, before: Callable[[], object] = nothing) -> Ending:
        """Let a copy go on, after `before`, which can be pickled, was called there."""
        reader, writer = os.pipe()
        socket.send_fds(self._socket, [pickle.dumps(before)], [writer])
        os.close(writer)
        with open(reader, errors="replace") as stream:
            text = stream.read()
        answer = self._socket.recv(64)
        if not answer:
            raise AssertionError(f"the command ended before its job: {text}")
        return Ending(os.waitstatus_to_exitcode(int(answer)), text)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _stand(requests: socket.socket) -> None:
    """Have the job of a command begin once per request, each time in a copy of this process."""
    from openbench.cli.hydra.app import HydraCommand

    real = HydraCommand.carry_out

    def wait_and_carry_out(*arguments: object) -> int:
        while True:
            before, outputs, _, _ = socket.recv_fds(requests, 1 << 16, 1)
            if not before:
                os._exit(0)
            child = os.fork()
            if child == 0:
                os.dup2(outputs[0], 1)
                os.dup2(outputs[0], 2)
                os.close(outputs[0])
                pickle.loads(before)()
                return real(*arguments)
            os.close(outputs[0])
            _, status = os.waitpid(child, 0)
            requests.send(str(status).encode())

    HydraCommand.carry_out = wait_and_carry_out


def import_what_is_imported_by(place: Place, command: Sequence[str]) -> None:
    """Import here, once, what each run of a command would import for itself; seconds of it."""
    note = place.folder / "modules"
    place.reset({})
    ending = place.run(partial(_at_exit, note), command)
    assert ending.code == 0, ending.text
    for name in note.read_text().split():
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # made by a library at run time
    note.unlink()


def _at_exit(note: Path) -> None:
    """Note the names of all modules when this process ends."""
    leave = os._exit

    def noting(code: int) -> None:
        note.write_text("\n".join(name for name in list(sys.modules) if name != "__main__"))
        leave(code)

    os._exit = noting
