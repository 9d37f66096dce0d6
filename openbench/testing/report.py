"""Reports on methods: every failed check in words, with the line of code that raised it."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from openbench.core.method import Method
from openbench.core.search import with_params
from openbench.errors import MethodError, OpenbenchError
from openbench.testing._checks import Check, CheckError, all_checks

_BREAK = "\n     "


@dataclass(frozen=True)
class MethodReport:
    """A method that passes.

    Args:
        method: its class's name.
        checks: the names of the checks.
    """

    method: str
    checks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method} passes all {len(self.checks)} checks"


def check_method(method: type[Method] | Method) -> MethodReport:
    """Run the checks that every method of openbench passes, and return a report.

    The method is fitted and scored on small planted data. It must read only what it declares, give one finite float32
    score per sample for every batch size and order, learn nothing while scoring, leave its inputs and hyper-parameters
    unchanged, be deterministic, pickle, and separate planted clusters. A streaming method may depend on the order, but
    not on later images or earlier streams.

    Args:
        method: a class whose hyper-parameters have defaults, or an instance.

    Raises:
        MethodError: all faults, with file and line where the method's own code raised an error.
    """
    make, cls = _factory(method)
    checks = all_checks()
    # The line that raised an error, else the text → the text, and the checks that fail because of it.
    faults: dict[str, tuple[str, list[Check]]] = {}
    for check in checks:
        try:
            check(make)
        except Exception as error:  # a method may raise anything
            text, place = _text(cls, error), _raised_at(cls, error)
            whole = text + (place and f"{_BREAK}{place}")
            faults.setdefault(place or text, (whole, []))[1].append(check)
    if faults:
        listed = [f"  {n}. {text}{_expected(failed)}" for n, (text, failed) in enumerate(faults.values(), start=1)]
        count = sum(len(failed) for _, failed in faults.values())
        raise MethodError("\n".join([f"{cls.__name__} fails {count} of {len(checks)} checks:", *listed]))
    return MethodReport(cls.__name__, tuple(check.__name__ for check in checks))


def _factory(method: type[Method] | Method) -> tuple[Callable[[], Any], type[Method]]:
    """Return a function that returns a new, unfitted method, and the method's class.

    Raises:
        MethodError: it is not a method, or the class cannot be called.
    """
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise MethodError(f"check_method: {cls.__name__} is not a Method — derive it from openbench.core.Method")
    if not is_dataclass(cls):
        raise MethodError(f"{cls.__name__} is not a dataclass — write @dataclass above the class")
    if not isinstance(method, type):
        return lambda: with_params(method, {}), cls
    try:
        cls()
    except TypeError as error:
        why = f"{cls.__name__} cannot be made without arguments: {error}"
        raise MethodError(f"{why} — give every hyper-parameter a default") from error
    return partial(cls), cls  # a new object, since checks share what is fitted for the same one


def _text(cls: type, error: Exception) -> str:
    text = str(error).removeprefix(f"{cls.__name__}: ")
    return text if isinstance(error, CheckError | OpenbenchError) else f"{type(error).__name__}: {text}"


def _raised_at(cls: type, error: Exception) -> str:
    """Return the last line of the method's code in a traceback; empty if there is none."""
    files = {file for base in cls.__mro__ if base is cls or not _is_ours(base) for file in _files_of(base)}
    raised: BaseException | None = error
    while raised is not None:
        frames = [f for f in traceback.extract_tb(raised.__traceback__) if f.filename in files]
        if frames:
            file, line = frames[-1].filename, frames[-1].lineno or 0
            return f"{_short(file)}:{line}, in {frames[-1].name}: {linecache.getline(file, line).strip()}"
        raised = raised.__cause__ or raised.__context__
    return ""


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("openbench.")


def _files_of(cls: type) -> set[str]:
    """Return the files, or cells of a notebook, with the methods of a class."""
    return {inspect.unwrap(f).__code__.co_filename for f in vars(cls).values() if inspect.isfunction(f)}


def _expected(failed: list[Check]) -> str:
    """Return the line with the promise that the first of some checks holds a method to."""
    fact = inspect.cleandoc(failed[0].__doc__ or failed[0].__name__).splitlines()[0]
    return f"{_BREAK}expected: {fact}" + (f" (and {len(failed) - 1} more)" if failed[1:] else "")


def _short(file: str) -> str:
    """Return a file's path, relative to the working directory if it is below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
