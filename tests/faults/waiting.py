"""A command that is composed and waits before its job: each run is a copy of that process, in a tenth of the time."""

import gc
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from functools import partial

from ..forked import Small, small  # noqa: TID252 — the tests are no package
from .conftest import RUN, Ending, Place, Written, nothing


class Waiting:
    """A process that stands before the job of a command and goes on from there in as many copies as are asked for.

    All that `Place.run` does is done here too, but composing the config, which reads neither cache nor results, is done
    once, and so are all imports. `undisturbed` are the files of the run that the imports are learnt from.

    Args:
        place: where it runs.
        command: of `run`, `train` or `extract`; a single job.
        undisturbed: the files that it leaves, where it was run before; None: it is run now.
    """

    def __init__(
        self, place: Place, command: Sequence[str] = RUN, undisturbed: dict[str, Written] | None = None
    ) -> None:
        if undisturbed is None:
            place.reset({})
            ending = place.run(command=command)  # imports what each run would import for itself; seconds of it
            assert ending.code == 0, ending.text
            undisturbed = place.written
        self.undisturbed = undisturbed
        self._noted = 0.0  # processor seconds
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._copy = small().copy(partial(_begin, place, command), [theirs.fileno()])

    def run(self, before: Callable[[], object] = nothing) -> Ending:
        """Let a copy go on, after `before`, which can be pickled, was called there."""
        reader, writer = os.pipe()
        socket.send_fds(self._socket, [pickle.dumps(before)], [writer])
        os.close(writer)
        with open(reader, errors="replace") as stream:
            text = stream.read()
        answer = self._socket.recv(64)
        if not answer:
            raise AssertionError(f"the command ended before its job: {self._copy.text()}")
        status, seconds = answer.split()
        self._noted += float(seconds)
        Small.spent += float(seconds)
        return Ending(os.waitstatus_to_exitcode(int(status)), text)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._copy.ended()
        Small.spent -= self._noted  # which are among the processor seconds of the process that had those copies made


def _begin(place: Place, command: Sequence[str], requests: int) -> None:
    place.be(partial(_stand, socket.socket(fileno=requests)), command)


def _stand(requests: socket.socket) -> None:
    """Have the job of a command begin once per request, each time in a copy of this process."""
    from openbench.cli.hydra import app

    real = app.composed

    def composed_and_wait(*arguments: object) -> object:
        made = real(*arguments)
        gc.freeze()  # as in tests/forked.py
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
                return made
            os.close(outputs[0])
            _, status, used = os.wait4(child, 0)
            requests.send(f"{status} {used.ru_utime + used.ru_stime}".encode())

    app.composed = composed_and_wait
