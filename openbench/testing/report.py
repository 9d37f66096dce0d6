"""Reports on methods: every failed check in words, with the line of code if it is known."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from openbench.core.method import Method
from openbench.core.streaming import StreamingMethod
from openbench.errors import MethodError, OpenbenchError
from openbench.testing._checks import (
    CheckError,
    all_checks,
    check_unfitted_raises_not_fitted,
)

Factory = Callable[[], Any]  # returns a new, unfitted method at each call
Check = Callable[[Any], None]

# Check → the part of a method that it is about if no line is known; the scoring function for the others.
_ABOUT = {
    "check_metadata_is_complete": "class",
    "check_declares_where_labels_come_from": "class",
    "check_fit_returns_self": "fit",
    "check_refit_equals_fresh_fit": "fit",
    "check_hyper_parameters_stay_as_given": "fit",
    "check_learnt_state_ends_in_underscore": "fit",
}


@dataclass(frozen=True)
class Place:
    """A line of the checked code.

    Args:
        file: its name in Python.
        line: counted from 1.
        inside: the function, or `class NAME`.
    """

    file: str
    line: int
    inside: str

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}, in {self.inside}" + f": {code}" * bool(code)


@dataclass(frozen=True)
class Finding:
    """A fault of a method.

    Args:
        text: the message.
        place: its line; None if it is not known.
        checks: the checks that fail because of it.
    """

    text: str
    place: Place | None
    checks: tuple[Check, ...]

    def __str__(self) -> str:
        lines = [self.text, *([str(self.place)] if self.place else [])]
        facts = [inspect.cleandoc(check.__doc__ or check.__name__).splitlines()[0] for check in self.checks]
        more = f" (and {len(facts) - 1} more)" if len(facts) > 1 else ""
        return "\n     ".join([*lines, *(f"expected: {fact}{more}" for fact in facts[:1])])


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
        method: a class whose hyper-parameters have defaults, or an unfitted instance.

    Raises:
        MethodError: all faults, with file and line if they are known.
    """
    make = _factory(method)
    cls = method if isinstance(method, type) else type(method)
    checks: tuple[Check, ...] = all_checks()
    findings: dict[object, Finding] = {}
    for check in checks:
        try:
            check(make)
        except Exception as error:  # a method may raise anything
            raised, text = _raised_at(cls, error), _text(cls, error)
            place = raised or _about(cls, check)
            # An error in one line of the method is one fault, however many checks fail.
            key = place if raised and check is not check_unfitted_raises_not_fitted else (text, place)
            before = findings.get(key, Finding(text, place, ()))
            findings[key] = Finding(before.text, before.place, (*before.checks, check))
    if findings:
        failed = sum(len(finding.checks) for finding in findings.values())
        listed = (f"  {number}. {finding}" for number, finding in enumerate(findings.values(), start=1))
        raise MethodError("\n".join([f"{cls.__name__} fails {failed} of {len(checks)} checks:", *listed]))
    return MethodReport(cls.__name__, tuple(check.__name__ for check in checks))


def _factory(method: type[Method] | Method) -> Factory:
    """Return a function that returns a new, unfitted method.

    Raises:
        MethodError: it is not a method, or the class cannot be called.
    """
    cls = method if isinstance(method, type) else type(method)
    if not issubclass(cls, Method):
        raise MethodError(
            f"check_method: {cls.__name__} is not a Method — pass a class derived from openbench.core.method.Method, "
            "or an instance"
        )
    where = f" ({place})" if (place := _definition(cls, "class")) else ""
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        raise MethodError(f"{cls.__name__}{where} does not define {', '.join(lacking)} — every method needs it")
    if not is_dataclass(cls):
        raise MethodError(f"{cls.__name__}{where} is not a dataclass — write @dataclass above the class")
    if not isinstance(method, type):
        if learnt := sorted(name for name in vars(method) if name.endswith("_")):
            raise MethodError(
                f"{cls.__name__} is fitted already: it has {', '.join(learnt)} — pass the class or a new instance"
            )
        return lambda: deepcopy(method)
    try:
        cls()
    except TypeError as error:
        raise MethodError(
            f"{cls.__name__}{where} cannot be made without arguments: {error} — give every hyper-parameter a default, "
            f"or pass an instance: check_method({cls.__name__}(…))"
        ) from error
    return cls


def _text(cls: type, error: Exception) -> str:
    text = str(error).removeprefix(f"{cls.__name__}: ")
    return text if isinstance(error, CheckError | OpenbenchError) else f"{type(error).__name__}: {text}"


def _raised_at(cls: type, error: Exception) -> Place | None:
    """Return the last line of the method's code in a traceback; None if there is none."""
    files = {function.__code__.co_filename for function in _functions(cls).values()}
    raised: BaseException | None = error
    while raised is not None:
        frames = [f for f in traceback.extract_tb(raised.__traceback__) if f.filename in files]
        if frames:
            return Place(_short(frames[-1].filename), frames[-1].lineno or 0, frames[-1].name)
        raised = raised.__cause__ or raised.__context__
    return None


def _about(cls: type, check: Check) -> Place | None:
    """Return the part of a method that a failed check is about."""
    scoring = "score_next" if issubclass(cls, StreamingMethod) else "score"
    return _definition(cls, _ABOUT.get(check.__name__, scoring)) or _definition(cls, scoring)


def _functions(cls: type) -> "dict[str, Callable[..., object]]":
    """Return the functions that a class and its bases outside openbench define."""
    functions: dict[str, Callable[..., object]] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("openbench.") and base is not cls:
            continue
        for name, value in vars(base).items():
            function = inspect.unwrap(value) if inspect.isfunction(value) else None
            if function is not None and not function.__code__.co_filename.startswith("<string>"):
                functions[name] = function
    return functions


def _definition(cls: type, name: str) -> Place | None:
    """Return the first line of a class, or of one of its functions."""
    functions = _functions(cls)
    if name in functions:
        code = functions[name].__code__
        return Place(_short(code.co_filename), code.co_firstlineno, name)
    if name != "class":
        return None
    try:
        file, (_, line) = inspect.getsourcefile(cls), inspect.getsourcelines(cls)
    except (OSError, TypeError):  # in a notebook
        return None
    return Place(_short(file or "?"), line, f"class {cls.__name__}")


def _short(file: str) -> str:
    """Return a file's path, relative to the working directory if it is below."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
