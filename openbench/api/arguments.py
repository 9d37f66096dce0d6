"""The plain arguments of an evaluation, checked before anything is opened: names, overrides, device, numbers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openbench.config.constraints import check_value
from openbench.errors import ConfigError, check_known
from openbench.metrics.suite import MetricOptions
from openbench.results.names import PART, is_part

_CHOSEN = {
    "benchmark": "benchmark='NAME'",
    "method": "methods='NAME'",
    "backbone": "the name of the model",
    "tune": "tune='NAME'",
    "seed": "seed=NUMBER",
}
_RUNTIME = ("device", "batch_size", "progress", "cache", "results")


def check_benchmark(benchmark: object) -> str:
    """Return the name of a benchmark.

    Raises:
        ConfigError: something else than a name, e.g. a path.
    """
    if not isinstance(benchmark, str):
        raise ConfigError(
            f"benchmark is a {type(benchmark).__name__} — its name expected, e.g. 'cifar10' (python -m openbench list "
            "benchmark)"
        )
    if not is_part(benchmark):
        raise ConfigError(
            f"benchmark — found '{benchmark}' — a name expected, e.g. 'cifar10' (python -m openbench list benchmark); "
            "one of your own in FOLDER/benchmark/NAME.yaml is benchmark='NAME', config_dir='FOLDER'"
        )
    return benchmark


def check_model_name(name: object, key: str = "name") -> None:
    """Check that records can be named by what a caller calls a model.

    Raises:
        ConfigError: they cannot.
    """
    if not is_part(name):
        raise ConfigError(f"{key} — found {name!r} — allowed: {PART}")


def words_of(overrides: Any) -> list[str]:
    """Return overrides as a list.

    Raises:
        ConfigError: no list of texts, or an override of what an argument says.
    """
    if isinstance(overrides, str):
        raise ConfigError(f"overrides is the text '{overrides}' — a list expected — write overrides=['{overrides}']")
    many = isinstance(overrides, list | tuple)
    odd = [type(text).__name__ for text in (overrides if many else (overrides,)) if not isinstance(text, str)]
    if odd:
        raise ConfigError(
            f"overrides is a {'list with ' if many else ''}{odd[0]} — a list of texts expected, as on the command "
            "line, e.g. overrides=['benchmark.incomplete=allow']"
        )
    for text in overrides:
        key, _, value = text.lstrip("+~").partition("=")
        own = key.removeprefix("runtime.")
        if key in _CHOSEN:
            raise ConfigError(f"overrides has '{text}' — an argument says that — give {_CHOSEN[key]}")
        if own != key and own in _RUNTIME:
            raise ConfigError(f"overrides has '{text}' — an argument says that — give {own}=…")
        if key == "runtime" and value.lstrip().startswith("{"):
            raise ConfigError(f"overrides has '{text}' — give its keys one by one, e.g. runtime.workers=4")
    return list(overrides)


def check_reaches(overrides: list[str], node: str, what: str) -> None:
    """Refuse overrides of a node that an object of the caller's takes the place of.

    Args:
        overrides: of the call.
        node: `backbone` or `method`.
        what: the object, in words.

    Raises:
        ConfigError: there is one.
    """
    for text in overrides:
        if text.lstrip("+~").startswith(f"{node}."):
            raise ConfigError(f"overrides has '{text}' — {what}, which no config describes — change the object itself")


def runtime_of(device: Any, progress: Any, **rest: Any) -> Mapping[str, Any]:
    """Return the values of the runtime node that a caller gives; numbers and paths as plain ones.

    Raises:
        ConfigError: a progress that is neither True nor False.
    """
    check_value(progress, bool, "progress")
    return {key: plain(value) for key, value in {"device": device_name(device), **rest}.items()}


def metric_options(options: Any) -> MetricOptions:
    """Return the options of metrics; the defaults where none are given.

    Raises:
        ConfigError: neither options nor a mapping of them, or an unknown one.
    """
    if isinstance(options, MetricOptions):
        return options
    if not isinstance(options, Mapping | None):
        raise ConfigError(
            f"metrics is a {type(options).__name__} — a mapping of options expected, e.g. metrics={{'replicates': 0}}"
        )
    check_known(options or {}, MetricOptions.__dataclass_fields__, "metrics")
    return MetricOptions(**(options or {}))


def folder_of(folder: Any, key: str) -> Path:
    """Return a folder that a caller names.

    Raises:
        ConfigError: something else than a path.
    """
    return path_of(folder, key, "a folder").expanduser()


def path_of(given: Any, key: str, what: str = "a file or folder") -> Path:
    """Return a path that a caller gives.

    Raises:
        ConfigError: something else than a path.
    """
    if not isinstance(given, str | Path):
        raise ConfigError(f"{key} is a {type(given).__name__} — the path of {what} expected")
    return Path(given)


def check_say(say: Any) -> None:
    """Check that a caller can be told what is being done.

    Raises:
        ConfigError: something else than a function.
    """
    if not callable(say):
        raise ConfigError(
            f"say is a {type(say).__name__} — a function that takes a line of text expected, e.g. print — leave it out "
            "to be told nothing"
        )


def device_name(device: Any) -> Any:
    """Return a torch device as text; other values as they are."""
    return str(device) if type(device).__name__ == "device" else device


def plain(value: Any) -> Any:
    """Return a path as text and a number of numpy as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value
