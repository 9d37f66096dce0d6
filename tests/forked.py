"""Copies of a small process, to be killed or to run side by side: they need not import everything, as new ones would.

The tests' own process holds whatever all tests have made and imported. A copy of it takes a tenth of a second by
itself, and half a second when Python then looks for garbage in it; one of a process that holds nothing but libraries
takes 12 ms.
"""

import atexit
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[1]
_MOST = 1 << 20  # bytes of an answer
_LENGTH = 8  # bytes that say how many a request has
# Another package may be called `tests`, among what is installed or in another checkout.
_BEGIN = """
import socket, sys, types
tests = sys.modules["tests"] = types.ModuleType("tests")
tests.__path__, sys.path[:] = [sys.argv[2]], sys.argv[3:]
from tests.forked import Template
Template(socket.socket(fileno=int(sys.argv[1]))).serve()
"""


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


@dataclass(frozen=True)
class Surroundings:
    """What a copy has from the tests' own process, as it is when the copy is asked for."""

    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    folder: str = field(default_factory=os.getcwd)
    searched: list[str] = field(default_factory=lambda: list(sys.path))
    warnings: list[object] = field(default_factory=lambda: list(warnings.filters))

    def enter(self) -> None:
        """Have this process be in them."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.searched
        warnings.filters[:] = self.warnings
        warnings._filters_mutated()


@dataclass
class Copy:
    """A copy, as the tests see it.

    Args:
        pid: of its process.
        output: what it writes to stdout and stderr is read here.
        status: what the template tells of its end is read here.
    """

    pid: int
    output: int
    status: int

    def text(self) -> str:
        """Read what it prints until it, and every process that it has begun, ends or closes its output."""
        with open(self.output, errors="replace") as stream:
            return stream.read()

    def ended(self) -> int:
        """Wait for its end; return the exit code, negative for a signal."""
        with open(self.status) as stream:
            code, seconds = stream.read().split()
        Small.spent += float(seconds)
        return os.waitstatus_to_exitcode(int(code))


class Small:
    """The template of the tests' copies: a process that imports nothing but what copies have imported before."""

    spent = 0.0  # processor seconds of copies that ended; they are no children of this process

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-c", _BEGIN, str(number), str(ROOT / "tests"), *sys.path]
            self._process = subprocess.Popen(command, pass_fds=[number], cwd=ROOT, stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def copy(self, act: Callable[..., object], files: Sequence[int] = ()) -> Copy:
        """Let a copy call `act`, which can be pickled, with the numbers that these open files have there.

        It is to leave by `os._exit`; the exit code is 1 if it returns.
        """
        reader, writer = os.pipe()
        status, told = os.pipe()
        self._ask(Request(act, Surroundings()), (writer, told, *files))
        os.close(writer)
        os.close(told)
        answer = self._socket.recv(64)
        if not answer:
            raise AssertionError("the template of copies has ended")
        return Copy(int(answer), reader, status)

    def once(self, act: Callable[[], object]) -> None:
        """Let the template itself call `act`, for all copies that come after."""
        self._ask(act, ())
        answer = self._socket.recv(_MOST).decode()
        assert answer == "done", answer

    def _ask(self, what: object, files: Sequence[int]) -> None:
        message = pickle.dumps(what)
        socket.send_fds(self._socket, [len(message).to_bytes(_LENGTH)], list(files))
        self._socket.sendall(message)

    def close(self) -> None:
        """End the template, and the copies that still run."""
        if os.getpid() == self._owner and self._socket.fileno() >= 0:
            self._socket.shutdown(socket.SHUT_RDWR)  # closed alone it stays open in what was forked meanwhile
            self._socket.close()
            self._process.wait()


@cache
def small() -> Small:
    """The template of this process; it begins with the first that asks for a copy."""
    return Small()


@dataclass(frozen=True)
class Request:
    """For a copy that does something."""

    act: Callable[..., object]
    surroundings: Surroundings


class Template:
    """What the small process does: it answers requests until nobody is there to ask.

    Args:
        requests: where they come in.
    """

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._told: dict[int, int] = {}  # pid of a copy → where its end is told
        self._at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: who asks for copies ends this one
        self._learnt, self._learn = os.pipe()  # names of modules, a line each
        self._names = b""
        self._woken, wake = os.pipe()
        for end in (self._woken, wake, self._learnt):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        gc.set_threshold(10_000)  # as in tests/conftest.py

    def serve(self) -> NoReturn:
        """Answer requests, and tell of copies that have ended."""
        while True:
            ready, _, _ = select.select([self._requests, self._woken, self._learnt], [], [])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    os.read(self._woken, 1 << 12)
                self._reap()
            if self._learnt in ready:
                self._import_what_copies_imported()
            if self._requests in ready:
                length, files, _, _ = socket.recv_fds(self._requests, _LENGTH, 8)
                if not length:
                    self._end()
                message = self._requests.recv(int.from_bytes(length), socket.MSG_WAITALL)
                self._answer(message, files)

    def _end(self) -> NoReturn:
        for pid in self._told:
            os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
        os._exit(0)  # nothing here needs putting in order

    def _answer(self, message: bytes, files: list[int]) -> None:
        self._import_what_copies_imported()
        try:
            asked = pickle.loads(message)
            if not isinstance(asked, Request):
                asked()
        except Exception:
            self._requests.send(traceback.format_exc().encode())
            for file in files:
                os.close(file)
            return
        if not isinstance(asked, Request):
            self._requests.send(b"done")
            return
        output, told, *others = files
        gc.freeze()  # or each copy would look for garbage in all that it has from here, and so have it copied
        pid = os.fork()
        self._told[pid] = told
        if pid == 0:
            self._be(asked, output, others)
        for file in (output, *others):
            os.close(file)
        self._requests.send(str(pid).encode())

    def _be(self, asked: Request, output: int, others: list[int]) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._at_interrupt)
        self._requests.close()
        for end in (self._learnt, *self._told.values()):  # the end of another copy is read until nobody has it open
            os.close(end)
        latest = next(reversed(sys.modules))
        try:
            for number in (1, 2):
                os.dup2(output, number)
            os.close(output)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
            asked.surroundings.enter()
            _at_exit(lambda: self._tell_imports(latest))
            asked.act(*others)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _tell_imports(self, latest: str) -> None:
        """Tell the template what this copy has imported of what is installed, for those that come after.

        Args:
            latest: what the template has imported last. To look at what it has would copy that, 2,000 pages of memory.
        """
        homes = (sys.prefix, sys.base_prefix, str(ROOT / "openbench"))
        new = reversed(list(takewhile(lambda name: name != latest, reversed(sys.modules))))
        found = [name for name in new if _lies_in(sys.modules[name], homes)]
        text = "".join(f"{name}\n" for name in found).encode()
        while text:  # whole lines, in parts that no other copy's come between
            end = len(text) if len(text) <= select.PIPE_BUF else text.rindex(b"\n", 0, select.PIPE_BUF) + 1
            os.write(self._learn, text[:end])
            text = text[end:]

    def _import_what_copies_imported(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self._names += os.read(self._learnt, 1 << 16)
        whole, _, self._names = self._names.rpartition(b"\n")
        for name in whole.decode().split():
            if name not in sys.modules:
                with suppress(Exception):  # made by a library at run time
                    importlib.import_module(name)

    def _reap(self) -> None:
        for pid, told in list(self._told.items()):
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                with suppress(BrokenPipeError):
                    os.write(told, f"{status} {used.ru_utime + used.ru_stime}".encode())
                os.close(told)
                del self._told[pid]


def _lies_in(module: object, homes: tuple[str, ...]) -> bool:
    return str(getattr(getattr(module, "__spec__", None), "origin", None)).startswith(homes)


def _at_exit(act: Callable[[], object]) -> None:
    """Call `act` when this process leaves by `os._exit`."""
    leave = os._exit

    def leave_after(code: int) -> NoReturn:
        os._exit = leave
        with suppress(Exception):
            act()
        leave(code)

    os._exit = leave_after
