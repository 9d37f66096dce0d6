"""Exceptions. A message says what is wrong and, after a dash, what to do."""

import difflib
from collections.abc import Iterable, Sequence

_LISTED = 12  # names in a message
_NEAREST = 5


class OpenbenchError(Exception):
    """Base of all errors caused by input, data or configuration; the command line turns it into exit code 2."""


class ConfigError(OpenbenchError):
    """A config names something that does not exist or does not fit."""


class NotApplicableError(ConfigError):
    """A method asks for what this backbone, benchmark or installation does not have; a sweep skips it."""


class DataError(OpenbenchError):
    """A data set is missing, incomplete, unreadable or not what its manifest says."""


class MissingSetsError(DataError):
    """Sets of a benchmark are missing. The message is in the words of the command line; `in_python` in Python's."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def in_python(self) -> str:
        """The message with the arguments of `ob.evaluate` in place of overrides."""
        return str(self.args[-1])


class LeakageError(DataError):
    """Splits share classes or images that they must not share."""


class CheckpointError(OpenbenchError):
    """Weights are missing, have another hash than stated, or do not fit the architecture."""


class TrainingError(OpenbenchError):
    """The loss of a training is not finite."""


class CacheError(OpenbenchError):
    """A cached column is damaged; deleting it is always safe."""


class MetricError(OpenbenchError, ValueError):
    """Scores or options for which a metric is undefined."""


class MethodError(OpenbenchError, ValueError):
    """A hyper-parameter or an input for which a method is undefined."""


class NotFittedError(MethodError):
    """`score` was called before `fit`."""


class FieldError(MethodError):
    """A method touched a field that it did not declare in its Request."""


class RecordError(OpenbenchError):
    """A result record is malformed, exists with other content, or does not reproduce."""


class NotReproducedError(RecordError):
    """A record was computed again with other numbers."""


def check_known(
    keys: Iterable[str], allowed: Iterable[str], where: str, error: type[OpenbenchError] | None = None
) -> None:
    """Raise an error for a key that is not allowed.

    Args:
        keys: the keys of a mapping.
        allowed: the keys that it may have.
        where: name of the mapping, e.g. `benchmark.id`.
        error: class of the error; None for ConfigError.
    """
    choices = list(allowed)
    for key in keys:
        if key not in choices:
            hint = did_you_mean(str(key), choices)
            raise (error or ConfigError)(f"{where} has no key '{key}'{hint} — allowed: {', '.join(choices) or 'none'}")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest of `choices`, or an empty string if none is near, or it is one."""
    names = list(choices)
    near = [] if name in names else difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def available(choices: Iterable[str], name: str = "") -> str:
    """Return names as text: up to twelve, of more the five nearest to `name` in spelling."""
    names = list(choices)
    if len(names) <= _LISTED:
        return ", ".join(names) or "none"
    near = difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0) if name else names[:_NEAREST]
    return f"{', '.join(near)} and {len(names) - len(near)} more"


def listed(things: Iterable[object], most: int = 3, separator: str = ", ", last: str = " and ") -> str:
    """Return things as text, of more than `most` the first ones and how many there are besides."""
    texts = [str(thing) for thing in things]
    more = f"{last}{len(texts) - most:,} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def not_found(what: str, name: str, choices: Iterable[str], command: str = "") -> str:
    """Return the message for a name that does not exist: the nearest one, else what there is, and what lists all.

    Args:
        what: e.g. `method 'knm'`, also with a place: `method 'knm' not found in configs/method`.
        name: as typed.
        choices: all names.
        command: that lists them, after `python -m openbench`.
    """
    names = list(choices)
    hint = did_you_mean(name, names) or f" — available: {available(names, name)}"
    listed = f" (python -m openbench {command})" if command else ""
    return f"{what}{'' if 'not found' in what else ' not found'}{hint}{listed}"


def check_choice(key: str, value: object, allowed: Sequence[str]) -> None:
    """Check that the config's `key` has one of the values `allowed`.

    Raises:
        ConfigError: it has another value.
    """
    if value not in allowed:
        raise ConfigError(f"{key} — found {value!r}, allowed: {', '.join(allowed)}{did_you_mean(str(value), allowed)}")


def pip_install(extra: str) -> str:
    """Return the pip command that installs an extra of openbench, e.g. `slurm`."""
    return f"pip install 'openbench-ood[{extra}]'"
